"""Let threads share the lanes of a real decoder, which it computes as one batch, at several switch intervals of Python.

Some prompts are cancelled, fail or are read slowly. No bit of a prompt's result may differ from decoding it alone, no
sequence may stay on the lanes, and every thread must end.

    python -m tools.campaigns lanes [--threads 24] [--prompts 12] [--intervals 0.005 0.0005 0.00001] [-o FILE]
"""

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.models.tortoise.chunks import split_into_chunks
from ane.models.tortoise.decoding import Embeddings, Prompt, make_lanes
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.speech.lanes import Decoding, Lanes
from ane.speech.turns import Turns
from ane.system.errors import UserError

TEXTS = ("The turtle came first.", "It was late.", "Nobody knew why the rabbit slept.", "One.", "So it was, and is.")
FATES = ("rows", "rows", "all", "slow", "cancelled", "failing", "left")


class UnwantedError(UserError):
    """The request of a prompt no longer wants its result."""


@dataclass
class Work:
    """The objects that all threads share."""

    lanes: Lanes
    prompts: Sequence[Callable[[], Prompt]]
    expected: Sequence[list[Any]]  # candidates of each prompt when it is decoded alone
    found: Counter[str]
    wrong: list[str]


def prompt_makers(speaker: TortoiseSpeaker, codes: int) -> list[Callable[[], Prompt]]:
    """Return functions that each make a prompt with one to three candidates."""
    model, config = speaker.model, speaker.model.config("autoregressive")
    settings = TortoiseSettings.of("fastest", model.settings)
    sampling = replace(settings.sampling, max_codes=codes)
    voice, tables = speaker.voice(None, Randomness(0)), Embeddings(**speaker.backend.embeddings())

    def maker(number: int, text: str) -> Callable[[], Prompt]:
        [chunk] = split_into_chunks(text, model, settings)
        return lambda: Prompt(
            voice.ar,
            chunk.tokens,
            [InverseCdfSampler(Randomness(number).candidate(0, index)) for index in range(1 + number % 3)],
            tables,
            config,
            sampling,
        )

    return [maker(number, text) for number, text in enumerate(TEXTS * 2)]


def same(candidate: Any, expected: Any) -> bool:
    return (
        candidate.codes == expected.codes
        and np.array_equal(candidate.hidden, expected.hidden)
        and np.array_equal(candidate.latents, expected.latents)
    )


def one_prompt(work: Work, rng: random.Random) -> None:
    """Decode one prompt in one of the ways of a request, and compare its results with the expected ones."""
    index, fate = rng.randrange(len(work.prompts)), rng.choice(FATES)
    prompt, ended = work.prompts[index](), threading.Event()
    if fate == "failing":
        prompt.conditioning = np.full_like(prompt.conditioning, np.nan)

    def check() -> None:
        if ended.is_set():
            raise UnwantedError("nobody wants it")

    decoding = work.lanes.submit(prompt, lambda: (1, float(index)), check)
    try:
        rows = read_rows(decoding, fate, ended, rng)
        results = decoding.all()
    except UserError as error:
        expected = {"failing": "NaN or infinite", "cancelled": "cancelled", "left": "nobody wants it"}
        if expected.get(fate, "-") not in str(error):
            work.wrong.append(f"{fate}: {error}")
        decoding.cancel()
    else:
        if not all(map(same, results, work.expected[index])) or not all(
            np.array_equal(row, kept) for row, kept in zip(rows, results[0].hidden, strict=False)
        ):
            work.wrong.append(f"{fate}: prompt {index} differs from what it is alone")
    work.found[fate] += 1


def read_rows(decoding: Decoding, fate: str, ended: threading.Event, rng: random.Random) -> list[np.ndarray]:
    rows: list[np.ndarray] = []
    if fate == "all":
        return rows
    stops = rng.randrange(1, 12)
    for some in decoding.rows():
        rows += list(some)
        if fate == "slow":
            time.sleep(0.002)
        if len(rows) >= stops and fate == "cancelled":
            threading.Thread(target=decoding.cancel).start()
        if len(rows) >= stops and fate == "left":
            ended.set()
    return rows


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(
    threads: int,
    prompts: int,
    interval: float,
    calls: int = 2,
    codes: int = 30,
    lanes: int = 6,
    patience: float = 600.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Let threads decode prompts on shared lanes.

    Args:
        calls: Number of threads that may compute at once (``Turns``). 0 means that threads need no turn.
    """
    speaker: Any = ane.load("demo", "torch", threads=1, keep=True)
    backend, config, longest = speaker.backend, speaker.model.config("autoregressive"), 60
    makers = prompt_makers(speaker, codes)
    alone = make_lanes(backend, config, 3, codes, 3, longest)
    expected = [alone.submit(make()).all() for make in makers]
    turns = Turns(calls) if calls else None
    shared = make_lanes(backend, config, lanes, codes, 4, longest, turns=turns)
    work = Work(shared, makers, expected, Counter(), [])

    def serve(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for _ in range(prompts):
            if turns is None:
                one_prompt(work, rng)
            else:
                with turns.turn(lambda: (1, float(number))):
                    one_prompt(work, rng)

    began = time.monotonic()
    started = [threading.Thread(target=serve, args=(number,), daemon=True) for number in range(threads)]
    with switch_interval(interval):
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(max(0.0, began + patience - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in started)
    leaks = {
        "lanes": len(shared.active),
        "prompts": len(shared.prompts),
        "prefixes": 4 - len(shared.free_prefixes),
        "turns": 0 if turns is None or turns.idle else 1,
    }
    return {
        "interval": interval,
        "calls": calls,
        "threads": threads,
        "prompts": sum(work.found.values()),
        "fates": dict(sorted(work.found.items())),
        "wrong": work.wrong[:5],
        "stuck": stuck,
        "leaks": leaks,
        "seconds": round(time.monotonic() - began, 1),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.campaigns lanes")
    parser.add_argument("--threads", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=12, help="number of prompts for each thread")
    parser.add_argument("--intervals", type=float, nargs="+", default=[0.005, 0.0005, 0.00001])
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args(arguments)
    results = [run(args.threads, args.prompts, interval, calls) for interval in args.intervals for calls in (0, 1, 2)]
    text = json.dumps(results, indent=1)
    sys.stdout.write(text + "\n")
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")
    return int(any(each["wrong"] or each["stuck"] or any(each["leaks"].values()) for each in results))
