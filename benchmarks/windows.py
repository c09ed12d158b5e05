"""`python -m benchmarks.windows`: how near speech diffused in windows is to speech diffused in one go.

Latents of held-out sentences, several joined to one text if asked for, are diffused whole and in windows of several
lengths, on the same noise, and once more whole on other noise, which says what a distance means. Told are the distance
of the mels in dB (root mean square over bands, mean over frames), and the word error rate of an offline recogniser.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.models.tortoise.diffusion import SAMPLERS, Diffusion, spectrogram
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.synthesizer import SAMPLE_RATE, Synthesizer
from ane.models.tortoise.vocoding import univnet_sound
from ane.models.tortoise.windows import Windows, windowed_mels
from ane.voices import Voice, load_voice
from benchmarks.listening import Recogniser, edits, words
from benchmarks.report import bars, default_output, print_table, publish, run
from benchmarks.speakers import readings_of
from training.text import held_out_sentences

SEED, OTHER, LONGEST = 7, 1000, 4000        # LONGEST: frames of a field of noise
TRIED = ((16, 16, 4), (16, 64, 4), (24, 96, 8), (32, 32, 8), (32, 128, 4), (32, 128, 12), (32, 128, 20), (48, 128, 12))


class Field:
    """Stands in for a random generator: the k-th draw of whoever draws is cut from the k-th field of noise."""

    def __init__(self, seed: int, draws: int):
        self.seed, self.draws, self.turn = seed, draws, 0
        self.used = [0] * draws

    def standard_normal(self, shape: Sequence[int], dtype: type) -> np.ndarray:
        draw = self.turn % self.draws
        first, self.turn = self.used[draw], self.turn + 1
        self.used[draw] += shape[-1]
        field = np.random.default_rng((self.seed, draw)).standard_normal((LONGEST, shape[1]), dtype)
        return field[first:first + shape[-1]].T[None]


def latents_of(synthesizer: Synthesizer, sentences: Sequence[str], voice: Voice) -> list[np.ndarray]:
    """One reading of each: (N, D)."""
    found = []
    for index, text in enumerate(sentences):
        _, [candidate] = readings_of(synthesizer, text, voice, 1, Randomness(SEED + index))
        found.append(candidate.latents)
    return found


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Of log-mels (100, L), in dB."""
    return float(np.sqrt(np.square(ours - theirs).mean(axis=0)).mean() * 20 / np.log(10))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of the whole, of the whole on other noise, and of each kind of windows."""
    synthesizer = ane.load(options.bundle)
    model, backend = synthesizer.model, synthesizer.backend
    name = model.default_voice
    voice = load_voice(model.voices / f"{name}.safetensors", name)
    sentences = held_out_sentences()[:options.sentences]
    parts = latents_of(synthesizer, sentences, voice)
    starts = range(0, len(sentences), options.join)
    texts = [" ".join(sentences[start:start + options.join]) for start in starts]
    latents = [np.concatenate(parts[start:start + options.join]) for start in starts]
    diffusion = Diffusion(options.steps, options.sampler, None)
    draws, prediction = options.steps + 1 if options.sampler == "p" else 1, model.config("diffusion").prediction
    recogniser = Recogniser(())

    def whole(seed: int) -> list[np.ndarray]:
        return [spectrogram(backend, some, voice.diffusion, diffusion, Field(seed + index, draws),
                            prediction=prediction)[0] for index, some in enumerate(latents)]

    def windowed(windows: Windows) -> list[np.ndarray]:
        return [np.concatenate(list(windowed_mels(backend, [some], voice.diffusion, diffusion, Field(index, draws),
                                                  windows, prediction=prediction)), axis=1)
                for index, some in enumerate(latents)]

    def errors(mels: Sequence[np.ndarray]) -> float:
        wrong = count = 0
        for index, (mel, text) in enumerate(zip(mels, texts, strict=True)):
            sound = univnet_sound(backend, model.config("univnet"), Randomness(SEED + index).vocoder(0, 0), mel)
            said, heard = words(text), words(recogniser.transcribe(sound, SAMPLE_RATE))
            wrong, count = wrong + edits(said, heard), count + len(said)
        return wrong / count

    wanted = whole(0)
    systems: dict[str, Callable[[], list[np.ndarray]]] = {
        "whole": lambda: wanted, "whole, other noise": lambda: whole(OTHER),
        **{f"first {sizes[0]}, size {sizes[1]}, overlap {sizes[2]}": lambda sizes=sizes: windowed(Windows(*sizes))
           for sizes in options.windows or TRIED}}
    found = []
    for system, make in systems.items():
        mels = make()
        apart = float(np.mean([distance(ours, theirs) for ours, theirs in zip(mels, wanted, strict=True)]))
        found.append({"system": system, "distance_db": apart, "wer": errors(mels)})
        print(f"{system}: {apart:.2f} dB, word error rate {found[-1]['wer']:.3f}", flush=True)
    return [{**one, "latents": float(np.mean([len(some) for some in latents]))} for one in found]


def main() -> None:
    options = arguments()
    found = measure(options)
    shown = print_table(
        f"{options.sentences} sentences, {options.join} at a time, {found[0]['latents']:.0f} latents; "
        f"{options.sampler}, {options.steps} steps", ("diffused", "from the whole, dB", "WER"),
        [(one["system"], f"{one['distance_db']:.2f}", f"{one['wer']:.3f}") for one in found])
    settings = {name: getattr(options, name) for name in ("sentences", "join", "sampler", "steps")}
    apart = {one["system"]: {"from the whole": one["distance_db"]} for one in found}
    publish(options.output, "windows", settings, [], [shown],
            {"": lambda path: bars(path, "Diffused in windows", "dB", apart)}, systems=found)


def sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--bundle", metavar="NAME_OR_DIR", help="what to measure (default: the embedded demo)")
    add("--sentences", type=int, default=24, metavar="N", help="the first N held-out ones (%(default)s)")
    add("--join", type=int, default=1, metavar="N", help="so many to a text (%(default)s)")
    add("--sampler", choices=SAMPLERS, default="dpm++2m", help="(%(default)s)")
    add("--steps", type=int, default=12, help="(%(default)s)")
    add("--windows", type=sizes, action="append", metavar="FIRST,SIZE,OVERLAP", help="to try; may be given repeatedly")
    add("-o", "--output", type=Path, default=default_output("windows"), metavar="FILE", help="JSON (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
