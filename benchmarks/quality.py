"""`python -m benchmarks.quality`: how well a bundle's own voices can be understood, by an offline recogniser.

Says the held-out sentences (training/held_out.txt) and lets pocketsphinx write down what it hears: word error
rate with its 95 % interval (bootstrap over sentences), forced choice among the first 30 sentences, how often the
decoder stops by itself, length, pitch and mel distance against the teacher, silence and clicks. The teacher is flite;
codes of the teacher's speech, spoken by the quality path, show what sampling costs (they need a training run's
quantiser: --run). Best of 8 by CLVP is held against the mean of the same 8, twice for each sentence.
"""

import argparse
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.bundles import open_model
from ane.models.tortoise.result import SAMPLE_RATE
from ane.models.tortoise.settings import PRESETS, default_preset
from ane.models.tortoise.synthesizer import Synthesizer
from ane.system.errors import UserError
from ane.voices import Voice, load_voice
from benchmarks.listening import Recogniser, Wave, edits, mel_distance, words
from benchmarks.report import bars as drawn_bars
from benchmarks.report import default_output, print_table, publish, run
from benchmarks.speakers import CANDIDATES, SETS, Said, candidates_of, keep, quantise, respeak_all, speak_all, teach_all
from training.speech import Flite
from training.text import held_out_sentences

CHOICES = 30


@dataclass
class Judged:
    """What the ears make of it."""

    text: str
    heard: str
    errors: int
    words: int
    chosen: bool | None
    wave: Wave
    mel_distance: float | None
    stopped: bool


def judge(said: Said, teacher: np.ndarray | None, choices: tuple[str, ...]) -> Judged:
    """``teacher``: the same sentence by the teacher, (S,) float32 at 24 kHz, for the mel distance."""
    recogniser = recogniser_of(choices)
    heard = recogniser.transcribe(said.audio, SAMPLE_RATE)
    chosen = None
    if said.text in choices:
        chosen = recogniser.chosen(said.audio, SAMPLE_RATE) == " ".join(words(said.text))
    distance = None if teacher is None else mel_distance(said.audio, teacher)
    return Judged(said.text, heard, edits(words(said.text), words(heard)), len(words(said.text)), chosen,
                  Wave.of(said.audio, SAMPLE_RATE), distance, said.stopped)


@cache
def recogniser_of(choices: tuple[str, ...]) -> Recogniser:
    """One a process: its models take a second to load."""
    return Recogniser(choices)


def summary(judged: Sequence[Judged], teacher: Sequence[Judged]) -> dict[str, Any]:
    """The figures of one system, sentence by sentence beside the teacher's."""
    errors, count = (np.array([getattr(one, name) for one in judged], dtype=float) for name in ("errors", "words"))
    lengths = np.array([one.wave.seconds / other.wave.seconds for one, other in zip(judged, teacher, strict=True)])
    waves = [one.wave for one in judged]
    f0, own = (float(np.nanmedian([one.wave.f0 for one in side])) for side in (judged, teacher))
    distances = [one.mel_distance for one in judged if one.mel_distance is not None]
    chosen = [one.chosen for one in judged if one.chosen is not None]
    return {"wer": errors.sum() / count.sum(), "interval": interval(errors, count), "forced": sum(chosen),
            "choices": len(chosen), "stopped": float(np.mean([one.stopped for one in judged])),
            "longest": float(lengths.max()), "f0": f0, "f0_off": f0 / own - 1,
            "mel_distance_db": float(np.mean(distances)) if distances else None,
            "loudness_db": float(np.mean([wave.loudness for wave in waves])),
            "loudness_spread_db": float(np.std([wave.loudness for wave in waves])),
            "silent_end": max(wave.silent_end for wave in waves), "clicks": sum(wave.clicks for wave in waves),
            "finite": all(wave.finite for wave in waves)}


def interval(errors: np.ndarray, count: np.ndarray) -> tuple[float, float]:
    """95 % of the word error rate, sentences drawn anew 2000 times."""
    drawn = np.random.default_rng(0).integers(0, len(errors), (2000, len(errors)))
    rates = errors[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    return float(np.quantile(rates, 0.025)), float(np.quantile(rates, 0.975))


def judge_all(pool: ProcessPoolExecutor, said: Iterable[Said], teacher: Sequence[Said] | None,
              choices: tuple[str, ...]) -> list[Judged]:
    """The pool listens while the rest is still being spoken."""
    futures = [pool.submit(judge, one, None if teacher is None else teacher[index].audio, choices)
               for index, one in enumerate(said)]
    return [future.result() for future in futures]


def ranking(pool: ProcessPoolExecutor, synthesizer: Synthesizer, sentences: Sequence[str],
            voice: Voice) -> dict[str, float]:
    readings, taken = candidates_of(synthesizer, sentences, voice)
    judged = judge_all(pool, [one for row in readings for one in row], None, ())
    errors = np.array([one.errors for one in judged], dtype=float).reshape(len(sentences), SETS, CANDIDATES)
    return gain_of(errors, np.array([len(words(text)) for text in sentences], dtype=float), np.array(taken))


def gain_of(errors: np.ndarray, count: np.ndarray, taken: np.ndarray) -> dict[str, float]:
    """Word error rates of the candidates that were taken, of a random one, and of the best there is.

    Args:
        errors: (sentences, sets, candidates) wrong words. count: (sentences,) words. taken: (sentences, sets) the
            chosen ones.
    """
    ours = np.take_along_axis(errors, taken[..., None], axis=2).mean(axis=(1, 2))
    gains = errors.mean(axis=(1, 2)) - ours
    low, high = interval(gains, count)
    return {"random": errors.mean(axis=(1, 2)).sum() / count.sum(), "clvp": ours.sum() / count.sum(),
            "gain": gains.sum() / count.sum(), "gain_low": low, "gain_high": high,
            "oracle": errors.min(axis=2).mean(axis=1).sum() / count.sum()}


def bars(results: dict[str, Any]) -> list[tuple[str, float, str, bool]]:
    """What the embedded voice promises: (claim, figure, bound, whether it is kept)."""
    found = []

    def hold(claim: str, figure: float, least: float, most: float) -> None:
        found.append((claim, float(figure), f"{least:g} to {most:g}", bool(least <= figure <= most)))

    for voice, result in results.items():
        for system, allowed in (("quality", 0.15), ("fast", 0.20)):
            one = result[system]
            hold(f"{voice}, {system}: word error rate above the teacher's", one["wer"] - result["teacher"]["wer"], -1,
                 allowed)
            hold(f"{voice}, {system}: share that ends by itself", one["stopped"], 1, 1)
            hold(f"{voice}, {system}: longest, in lengths of the teacher", one["longest"], 0, 1.5)
            hold(f"{voice}, {system}: pitch beside the teacher's", one["f0_off"], -0.15, 0.15)
            hold(f"{voice}, {system}: silence at the end, s", one["silent_end"], 0, 0.3)
            hold(f"{voice}, {system}: clicks", one["clicks"], 0, 0)
            hold(f"{voice}, {system}: NaN", not one["finite"], 0, 0)
        hold(f"{voice}: gain of ranking by CLVP", result["ranking"]["gain"], 0, 1)
    return found


def measure(voice: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one voice of the bundle."""
    synthesizer = ane.load(options.bundle, options.backend, options.precision, options.threads)
    sentences = held_out_sentences()[:options.sentences]
    latents = load_voice(synthesizer.model.voices / f"{voice}.safetensors", voice)
    spoken = list(teach_all(sentences, voice, Flite(options.flite, options.flite_libraries)))
    systems = {"teacher": spoken}
    if options.run:
        systems["codes"] = respeak_all(synthesizer, spoken, latents, quantise(options.run, voice), options.preset)
    systems["fast"] = speak_all(synthesizer, sentences, voice, "fastest")
    systems["quality"] = speak_all(synthesizer, sentences, voice, options.preset)
    judged = {}
    with ProcessPoolExecutor(options.workers) as pool:
        for system, said in systems.items():
            kept = keep(said, options.keep, f"{voice}-{system}")
            judged[system] = judge_all(pool, kept, None if system == "teacher" else spoken, tuple(sentences[:CHOICES]))
        return {**{system: summary(side, judged["teacher"]) for system, side in judged.items()},
                "ranking": ranking(pool, synthesizer, sentences, latents),
                "heard": {system: [asdict(one) for one in side] for system, side in judged.items()}}


def main() -> None:
    options = arguments()
    model = open_model(bundle=options.bundle)
    options.preset = options.preset or default_preset(model.settings)
    if model.voices is None:
        raise UserError(f"{model.name} has no voices of its own to measure")
    names = sorted((path.stem for path in model.voices.glob("*.safetensors")), key=lambda n: n != model.default_voice)
    if options.run:
        for name in names:
            quantise(options.run, name)     # refused now, not after half of the work
    with ProcessPoolExecutor(len(names), mp_context=get_context("spawn")) as pool:
        results = dict(zip(names, pool.map(measure, names, [options] * len(names)), strict=True))
    count = len(held_out_sentences()[:options.sentences])
    heard = print_table(f"{count} sentences, preset {options.preset}", ("voice", *COLUMNS),
                        [row_of(voice, system, result[system], result["teacher"])
                         for voice, result in results.items() for system in result["heard"]])
    for voice, result in results.items():
        print("{}: best of {} by CLVP {clvp:.3f}, a random one {random:.3f}, gain {gain:.3f} ({gain_low:.3f} to "
              "{gain_high:.3f}), the best there is {oracle:.3f}".format(voice, CANDIDATES, **result["ranking"]))
    found = bars(results)
    promised = print_table("what it promises", ("claim", "figure", "bound", "kept"), [
        (claim, f"{figure:.3f}", bound, "yes" if kept else "NO") for claim, figure, bound, kept in found])
    wrong = {voice: {system: result[system]["wer"] for system in result["heard"]} for voice, result in results.items()}
    publish(options.output, "quality", {"preset": options.preset, "sentences": count}, [], [heard, promised],
            {"": lambda path: plotted(path, wrong)}, bundle=model.identity, precision=model.precision, bars=found,
            voices=results)


def plotted(path: Path, wrong: dict[str, dict[str, float]]) -> bool:
    """Word error rates, a bar for each voice and who speaks with it."""
    return drawn_bars(path, "What is misheard", "word error rate", {
        f"{voice}, {system}": {"wrong": rate} for voice, systems in wrong.items() for system, rate in systems.items()})


COLUMNS = ("spoken by", "WER", "95 %", "above teacher", f"of {CHOICES}", "stops", "longest ×", "f0 Hz", "mel dB",
           "dBFS", "silent end s", "clicks")


def row_of(voice: str, system: str, result: dict[str, Any], teacher: dict[str, Any]) -> tuple[str, ...]:
    low, high = result["interval"]
    mel = result["mel_distance_db"]
    return (voice, system, f"{result['wer']:.3f}", f"{low:.3f}–{high:.3f}", f"{result['wer'] - teacher['wer']:+.3f}",
            f"{result['forced']}", f"{result['stopped']:.0%}", f"{result['longest']:.2f}",
            f"{result['f0']:.0f} ({result['f0_off']:+.0%})", f"{mel:.1f}" if mel else "–",
            f"{result['loudness_db']:.1f} ±{result['loudness_spread_db']:.1f}", f"{result['silent_end']:.2f}",
            str(result["clicks"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--bundle", metavar="NAME_OR_DIR", help="what to measure (default: the embedded demo)")
    add("--preset", choices=PRESETS, help="of the quality path (default: the bundle's)")
    add("--backend", default="auto")
    add("--precision", default="auto")
    add("--threads", type=int, help="torch threads (default: torch's choice)")
    add("--workers", type=int, default=os.cpu_count(),
        help="processes that listen to a voice (%(default)s)")
    add("--sentences", type=int, default=None, metavar="N", help="the first N alone")
    add("--flite", default="flite", help="the teacher's program (%(default)s)")
    add("--flite-libraries", metavar="DIR", help="where its libraries lie, if not installed")
    add("--run", type=Path, metavar="DIR", help="a training run, for the codes of the teacher's speech")
    add("--keep", type=Path, metavar="DIR", help="keep the sound")
    add("-o", "--output", type=Path, default=default_output("quality"), metavar="FILE", help="JSON (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
