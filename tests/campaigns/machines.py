"""Speak on simulated Macs that refuse or spoil one function after the other.

    python -m tests.campaigns machines demo-coreml      writes results/machines.json

The bundle, which `ane convert demo --to coreml` made, speaks a short text on the stand-in of Core ML: on a machine that
works, on one that flushes subnormals, and for each function that this takes, on one whose Neural Engine (or GPU, where
the bundle says so) refuses it, and one that returns values 5 % too large. Each time the codes must be those of torch
and the sound must reach ``SOUND_DB``; what moved where is stated. First loads run in this process.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ane.backends import load_backend
from ane.backends.coreml import trial
from ane.bundles.bundle import Bundle
from ane.models.tortoise import pipeline
from ane.models.tortoise.pipeline import longest_loop
from ane.models.tortoise.settings import Diffusion, Settings
from ane.models.tortoise.synthesizer import Synthesizer
from ane.system import paths
from ane.system.decibels import snr_db
from ane.system.files import read_json, write_json
from tests.backends.coreml import native
from tests.backends.coreml.mac_fixtures import TrialInThisProcess, mac_environment
from tests.notices import noticed

RESULTS = Path(__file__).parent / "results" / "machines.json"
SOUND_DB = 40.0
HOWS = ("refuse", "off")
# kv-cache and diffusion of the ways to speak, which take different functions: all are measured
WAYS = {"a state": ("auto", Diffusion(steps=5)),
        "a cache on the host": ("io", Diffusion(steps=4)),
        "no diffusion": ("auto", None)}


def speak(model: Bundle, backend: str, way: str) -> tuple[np.ndarray, list[int], list[str]]:
    """The sound of a short text, its codes, and the notices of what moved."""
    usual = Settings.of("ultra_fast", candidates=1, lanes=2)
    cache, diffusion = WAYS[way]
    settings = replace(usual, sampling=replace(usual.sampling, max_codes=24), diffusion=diffusion)
    options = {"cache": cache} if backend == "auto" else {}
    codes: list[int] = []

    def listen(found: np.ndarray, config: Any) -> int:
        codes.extend(map(int, found))
        return longest_loop(found, config)

    with noticed() as notices, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "longest_loop", listen)
        speech = Synthesizer(model, load_backend(backend, model, **options)).speak("Hello.", seed=0, settings=settings)
    return speech.audio, codes, [line for line in notices if line.endswith("instead.")]


def forget(function: str) -> None:
    """Let the first loads of a function, and of all that failed, be repeated."""
    for record in (paths.cache_dir() / "compiled").glob("*/tried.json"):
        write_json(record, {key: problem for key, problem in read_json(record).items()
                            if key.split()[0] != function and not problem})


def run(model: Bundle, stand_in: native.StandIn, hows: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of the report; a function is spoiled in the first way that takes it."""
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        sound, codes, _ = speak(model, "torch:cpu", way)

        def measure(machine: str, function: str = "", way: str = way, sound: np.ndarray = sound,
                    codes: list[int] = codes) -> None:
            found, found_codes, notices = speak(model, "auto", way)
            quality = snr_db(sound, found) if len(sound) == len(found) else -np.inf
            rows.append({"way": way, "machine": machine, "function": function, "same_codes": codes == found_codes,
                         "sound_dB": round(float(quality), 1),
                         "moved": [line.split(" of ")[0].removeprefix("Core ML ") + line.partition("mlpackage")[2]
                                   for line in notices]})
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {rows[-1]}\n")

        before = len(stand_in.log)
        measure("works")
        used = {line.split()[1] for line in stand_in.log[before:] if line.startswith("load ")}
        for function in sorted(used - {row["function"] for row in rows}):
            package = next(one for one in model.packages if function in one.functions)
            for how in hows:
                stand_in.order(native.Order("predict", how, function, package.compute_units, "error code: -14"))
                forget(function)
                measure(how, function)
                forget(function)
        stand_in.order()
        (stand_in.folder / native.FLUSH).touch()
        for function in used:
            forget(function)
        measure("flushes subnormals")
        (stand_in.folder / native.FLUSH).unlink()
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns machines")
    parser.add_argument("bundle", type=Path, help="made by `ane convert demo --to coreml`")
    parser.add_argument("--only", choices=HOWS, help="one kind of fault")
    parser.add_argument("--steps", type=int, default=trial.STEPS, help="calls of a function with a cache")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        stand_in = mac_environment(Path(folder), patch)
        patch.setattr(trial, "CoreMLTrial", TrialInThisProcess)
        patch.setattr(trial, "STEPS", args.steps)
        rows = run(Bundle(args.bundle), stand_in, (args.only,) if args.only else HOWS)
    failed = [row for row in rows if not (row["same_codes"] and row["sound_dB"] >= SOUND_DB)]
    RESULTS.write_text(json.dumps({"runs": len(rows), "failed": len(failed), "calls_with_a_cache": args.steps,
                                   "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0
