"""Speak on simulated Macs on which Core ML refuses or spoils one function of a package at a time.

    python -m tools.campaigns machines demo-coreml      writes results/machines.json

The bundle comes from `ane convert demo --to coreml`. It speaks texts of several lengths on a stand-in for Core ML: on a
machine that works, on one that flushes subnormals, and, for each function of the bundle, on two faulty machines. On
one, the Neural Engine refuses the function (or the GPU, if the bundle chooses it). On the other, its values are 5 % too
large.

The codes must always equal torch's, and the sound must reach ``SOUND_DB``. If the weights round worse, the sound must
come within 3 dB of the machine that works. It must reach ``ROUNDED_DB`` if everything is rounded differently, because
subnormals are flushed or the cache moves to the host. The results say which functions moved, and where to.

In long texts, rounding sometimes changes a drawn code. The reference is then the machine that works, and the one that
flushes may draw other codes. First loads run in this process.

Upstream's vocoders make the sound, because their samples can be compared. ``demo``'s own vocoders make pulses, which
shift with the rounded sum of the pitch, so their sounds are compared as mels, which must reach ``MEL_DB``. Voices are
compared as latents.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ane.audio.mel import diffusion_mel
from ane.backends import load_backend
from ane.backends.base import Backend
from ane.backends.coreml import trial
from ane.backends.coreml.compiled import SECONDS
from ane.bundles.bundle import Bundle
from ane.models.tortoise import pipeline, synthesizer
from ane.models.tortoise.pipeline import longest_loop
from ane.models.tortoise.settings import SAMPLE_RATE, Diffusion, TortoiseSettings
from ane.models.tortoise.voices import encode_clips, random_voice
from ane.system import paths
from ane.system.decibels import snr_db
from ane.system.files import read_json, write_json
from tests.backends.coreml import native
from tests.backends.coreml.mac_fixtures import TrialInThisProcess, mac_environment
from tests.backends.coreml.orders import Order, StandIn
from tests.notices import noticed

RESULTS = Path(__file__).parent / "results" / "machines.json"
SOUND_DB, MEL_DB, ROUNDED_DB, SAME_DB = 40.0, 36.0, 28.0, 200.0
ON_HOST = re.compile(r"Running step\w+ and its like")
HOWS, FLUSHES = ("refuse", "off"), "flushes subnormals"
SENTENCE = "The morning train was late again, so we waited on the platform and watched the rain fall o"  # 90 letters
LONGEST = (
    "The morning train was late again, so we waited on the platform, and watched the rain fall on the roofs "
    "of the town, one by one."
)  # 127 letters of at most 130; about 157 codes of at most 260
LONGER = LONGEST.replace("fall on", "fall onto")  # 129 letters. CLVP has a smaller function for up to 128
UPSTREAM = {True: "univnet", False: "hifigan"}  # whether there is diffusion → vocoder


@dataclass(frozen=True)
class Way:
    """A way to speak, with at most ``codes`` codes. If ``voice`` is "random" or "clip", a voice is made instead."""

    text: str = "Hello."
    codes: int = 24
    cache: str = "auto"
    diffusion: Diffusion | None = None
    candidates: int = 1
    voice: str = ""
    own_vocoder: bool = False


GUIDED, UNGUIDED = Diffusion(steps=5), Diffusion(steps=4, guidance=None)
WAYS = {
    "a cache on the host": Way(cache="io", diffusion=UNGUIDED),  # before "a state", which is compared with it
    "a state": Way(diffusion=GUIDED),
    "no diffusion": Way(),
    "own vocoder": Way(own_vocoder=True),
    "own vocoder, diffusion": Way(own_vocoder=True, diffusion=UNGUIDED),
    "80 codes, guided": Way(SENTENCE, 80, diffusion=GUIDED, candidates=3),
    "80 codes, on the host": Way(SENTENCE, 80, "io", UNGUIDED, 3),
    "one chunk of 127 letters, guided": Way(LONGEST, 260, diffusion=replace(GUIDED, steps=2), candidates=2),
    "one chunk of 127 letters": Way(LONGEST, 260, diffusion=replace(UNGUIDED, steps=2)),
    "one chunk of 129 letters, few codes": Way(LONGER, 10, candidates=2),
    "few codes, own vocoder": Way("Hi.", 10, candidates=3, own_vocoder=True),
    "few codes, own vocoder, diffusion": Way("Hi.", 10, diffusion=UNGUIDED, own_vocoder=True),
    "a random voice": Way(voice="random"),
    "a voice of a clip": Way(voice="clip"),
}


@dataclass(frozen=True)
class Outcome:
    """The samples, or a voice's latents, with the codes of all chunks, and the notices about functions that moved."""

    values: np.ndarray
    codes: list[int]
    notices: list[str]


def speak(model: Bundle, backend: str, way: Way) -> Outcome:
    options = {"cache": way.cache} if backend == "auto" else {}
    with noticed() as notices, pytest.MonkeyPatch.context() as patch:
        engine = load_backend(backend, model, **options)
        if way.voice:
            values, codes = latents(engine, model, way.voice), list[int]()
        else:
            values, codes = sound(engine, model, way, patch)
    return Outcome(values, codes, [line for line in notices if line.endswith("instead.")])


def latents(engine: Backend, model: Bundle, voice: str) -> np.ndarray:
    """Compute the latents of a random voice, or of a voice from a clip, which is a tone with a rising pitch."""
    seconds = np.arange(4 * SAMPLE_RATE) / SAMPLE_RATE
    clip = (0.3 * np.sin(2 * np.pi * (120 + 20 * seconds) * seconds)).astype(np.float32)
    rng = np.random.default_rng(0)
    found = (
        random_voice(engine, model.widths, rng)
        if voice == "random"
        else encode_clips([(clip, SAMPLE_RATE)], engine, model.mel_norms, rng)
    )
    return np.concatenate((found.ar.ravel(), found.diffusion.ravel()))


def sound(engine: Backend, model: Bundle, way: Way, patch: pytest.MonkeyPatch) -> tuple[np.ndarray, list[int]]:
    usual = TortoiseSettings.of("ultra_fast", candidates=way.candidates, lanes=16)
    settings = replace(
        usual,
        sampling=replace(usual.sampling, max_codes=way.codes),
        diffusion=way.diffusion,
        split=None if way.text in (LONGEST, LONGER) else usual.split,
    )
    codes: list[int] = []

    def listen(found: np.ndarray, config: Any) -> int:
        codes.extend(map(int, found))
        return longest_loop(found, config)

    patch.setattr(pipeline, "longest_loop", listen)
    if not way.own_vocoder:
        for module in (pipeline, synthesizer):
            patch.setattr(module, "vocoder_of", lambda networks, diffused: UPSTREAM[diffused])
    return synthesizer.TortoiseSpeaker(model, engine).speak(way.text, seed=0, settings=settings).audio, codes


def quality(expected: np.ndarray, found: np.ndarray, way: Way) -> float:
    """Return the dB between expected and found values, or between the mels of two sounds."""
    if expected.shape != found.shape:
        return -np.inf
    if way.own_vocoder:
        expected, found = diffusion_mel(expected), diffusion_mel(found)
    return round(min(float(snr_db(expected, found)), SAME_DB), 1)


def forget(function: str) -> None:
    """Let the first loads of a function and of all failed functions happen again. Keep the recorded times."""
    for record in (paths.cache_dir() / "compiled").glob("*/tried.json"):
        write_json(
            record,
            {
                key: problem
                for key, problem in read_json(record).items()
                if key.endswith(SECONDS) or (key.split()[0] != function and not problem)
            },
        )


def run(model: Bundle, stand_in: StandIn, hows: Sequence[str], ways: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """Add the rows of the report. Each function is spoiled in the first way to speak that uses it."""
    for name in ways:
        way = WAYS[name]
        references = {"torch": speak(model, "torch:cpu", way)}

        def measure(
            machine: str,
            function: str = "",
            name: str = name,
            way: Way = way,
            references: dict[str, Outcome] = references,
        ) -> None:
            found = speak(model, "auto", way)
            if machine == "works" and found.codes != references["torch"].codes:
                references["a machine that works"] = found
            reference, expected = list(references.items())[-1]
            rows.append(
                {
                    "way": name,
                    "machine": machine,
                    "function": function,
                    "reference": reference,
                    "same_codes": expected.codes == found.codes,
                    "dB": quality(expected.values, found.values, way),
                    "asked_dB": MEL_DB if way.own_vocoder else SOUND_DB,
                    "moved": [
                        line.split(" of ")[0].removeprefix("Core ML ") + line.partition("mlpackage")[2]
                        for line in found.notices
                    ],
                }
            )
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {rows[-1]}\n")

        before = len(stand_in.log)
        measure("works")
        used = {line.split()[1] for line in stand_in.log[before:] if line.startswith("load ")}
        for function in sorted(used - {row["function"] for row in rows}):
            package = next(one for one in model.packages if function in one.functions)
            for how in hows:
                stand_in.order(Order("predict", how, function, package.compute_units, "error code: -14"))
                forget(function)
                measure(how, function)
                forget(function)
        stand_in.order()
        (stand_in.folder / native.FLUSH).touch()
        for function in used:
            forget(function)
        measure(FLUSHES)
        (stand_in.folder / native.FLUSH).unlink()


def failures(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows whose codes or sound do not meet the requirements."""
    rows = [row for row in rows if row["machine"] != FLUSHES or row["reference"] == "torch"]
    reached = {row["way"]: row["dB"] - 3 for row in rows if row["machine"] == "works"}
    asked = [
        ROUNDED_DB
        if row["machine"] == FLUSHES or any(map(ON_HOST.search, row["moved"]))
        else min(row["asked_dB"], reached[row["way"]])
        for row in rows
    ]
    return [row for row, least in zip(rows, asked, strict=True) if not (row["same_codes"] and row["dB"] >= least)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.campaigns machines")
    parser.add_argument("bundle", type=Path, help="bundle that `ane convert demo --to coreml` made")
    parser.add_argument("--only", choices=HOWS, help="test only this kind of fault")
    parser.add_argument("--steps", type=int, default=trial.STEPS, help="calls of a function with a cache")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="ways to speak (all)")
    parser.add_argument("--add", action="store_true", help="keep the stored rows, and test missing functions")
    args = parser.parse_args(arguments)
    model, rows = Bundle(args.bundle), read_json(RESULTS)["rows"] if args.add else []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        stand_in = mac_environment(Path(folder), patch)
        patch.setattr(trial, "CoreMLTrial", TrialInThisProcess)
        patch.setattr(trial, "STEPS", args.steps)
        run(model, stand_in, (args.only,) if args.only else HOWS, args.ways, rows)
    failed = failures(rows)
    missing = sorted(
        {name for package in model.packages for name in package.functions} - {row["function"] for row in rows}
    )
    RESULTS.write_text(
        json.dumps(
            {
                "runs": len(rows),
                "failed": len(failed),
                "functions_not_used": missing,
                "calls_with_a_cache": args.steps,
                "rows": rows,
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )
    return 1 if failed else 0
