"""How exact the times of words are: errors of their starts and ends against the teacher's, and what they cost.

The held-out sentences are spoken by the voices of the bundle; ``benchmarks.word_reference`` gives the true times.
--choose searches for the heads of the decoder that follow the text best, on other sentences, and prints them for
"alignment_heads" and "alignment_shift" in bundle.json.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import ane
from ane.bench.records import BenchRow, Spread
from ane.books.checking.recognisers import TextAligner
from ane.models.tortoise.candidate import Candidate
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.word_times import SECONDS_PER_CODE, WordTimer, expected_starts, without_delay
from ane.speech.words import shared_time
from benchmarks.harness import Benchmark, BenchmarkResult, model_name
from benchmarks.word_reference import true_times
from training.grammar import plain_sentence
from training.text import held_out_sentences
from training.timed_speech import TimedFlite

DELAYS = (-1, 0, 1, 2)      # codes, that --choose tries
LONGEST = 110               # characters of a sentence that --choose listens to
GAIN = 0.01                 # by which another head must lower the cost
ROUNDS = 5                  # of which the fastest counts, for the cost
TARGETS = 0.020, 0.060      # seconds: median and 95th percentile to be reached


@dataclass(frozen=True)
class TimedSentence:
    """A spoken sentence: its true word times (words, 2), and (layers, heads, T, tokens) attention if asked for."""

    text: str
    true: np.ndarray
    predicted: np.ndarray
    estimated: bool
    seconds: float
    attention: np.ndarray | None = None
    spans: Sequence[tuple[int, int]] = ()


class RecordingTimer(WordTimer):
    """Keeps the attention of every head, by which ``cost`` judges them, in ``attention`` (heads, T, tokens)."""

    def token_starts(self, tokens: Sequence[int], conditioning: np.ndarray, candidate: Candidate) -> np.ndarray | None:
        self.spans = [(first, last) for _, first, last in self.spoken_words(tokens[:-1])]
        return super().token_starts(tokens, conditioning, candidate)

    @property
    def stated_heads(self) -> list[tuple[int, int, int]]:
        return [(layer, head, 0) for layer in range(self.config.layers) for head in range(self.config.heads)]

    def attention_of(self, *arguments: Any) -> np.ndarray:
        self.attention = super().attention_of(*arguments)
        return self.attention


class ChoosingTimer(WordTimer):
    """Chooses heads on each chunk, as for a model that states none."""

    @property
    def stated_heads(self) -> list[tuple[int, int, int]]:
        return []


def spoken_sentences(synthesizer: Any, teacher: TimedFlite, sentences: Sequence[str], **request: Any,
                     ) -> Iterator[tuple[TimedSentence, Any]]:
    """Every sentence whose words the model and the teacher count alike, with the model's speech."""
    for text in sentences:
        speech = synthesizer.speak(text, **request)
        true = true_times(teacher, text, speech.audio, speech.sample_rate)
        predicted = np.array([(word.start, word.end) for word in speech.words])
        if len(true) == len(predicted):
            yield TimedSentence(text, true, predicted, any(word.estimated for word in speech.words),
                                speech.seconds), speech


def choose_heads(options: argparse.Namespace) -> tuple[list[tuple[int, int, int]], float]:
    """Greedy search: heads, each with a delay, whose mean attention gives the least error, and the shift in codes."""
    synthesizer = ane.load(options.bundle or "demo")
    synthesizer.backend.keep = True
    rng, examples = random.Random(options.seed), []
    texts = [text for _ in range(options.sentences) if len(text := plain_sentence(rng)) < LONGEST]
    settings = replace(Settings.of(options.preset, synthesizer.model.settings), silence=None)
    timer = RecordingTimer(synthesizer.backend, synthesizer.model, settings.normaliser)
    synthesizer.word_timer = lambda normaliser: timer
    for voice in options.voices:
        teacher = TimedFlite(voice, options.flite_libraries)
        for sentence, _ in spoken_sentences(synthesizer, teacher, texts, voice=voice, seed=options.seed,
                                            settings=settings, word_times=True):
            if len(timer.spans) == len(sentence.true):
                examples.append(replace(sentence, attention=timer.attention, spans=timer.spans))
    config = synthesizer.model.config("autoregressive")
    heads = [(layer, head) for layer in range(min(options.layers, config.layers)) for head in range(config.heads)]
    chosen: list[tuple[int, int, int]] = []
    best, shift = np.inf, 0.0
    while len(chosen) < options.most:
        tried = [(*cost(examples, [*chosen, (layer, head, delay)], config.heads), (layer, head, delay))
                 for layer, head in heads for delay in (DELAYS if chosen else (0,))]
        least, found, head = min(tried)
        if least > best - GAIN:
            break
        best, shift = least, found
        chosen.append(head)
        print(f"{head}: cost {best:.3f}, shift {shift:.2f} codes", flush=True)
    return chosen, shift


def cost(examples: Sequence[TimedSentence], chosen: Sequence[tuple[int, int, int]], heads: int) -> tuple[float, float]:
    """Median and 95th percentile of the error, each as a share of its target, in sum; and the shift in codes."""
    errors: list[float] = []
    for example in examples:
        mean = np.mean([without_delay(example.attention[layer * heads + head], delay) for layer, head, delay in chosen],
                       axis=0)
        starts = expected_starts(mean) * SECONDS_PER_CODE
        errors += [starts[token] - seconds for span, ends in zip(example.spans, example.true, strict=True)
                   for token, seconds in zip(span, ends, strict=True)]
    shift = -float(np.median(errors))
    sizes = np.abs(np.array(errors) + shift)
    return float(np.median(sizes) / TARGETS[0] + np.percentile(sizes, 95) / TARGETS[1]), shift / SECONDS_PER_CODE


def measure_words(options: argparse.Namespace) -> BenchmarkResult:
    if options.choose:
        heads, shift = choose_heads(options)
        return BenchmarkResult([], {"model": model_name(options)}, [
            f'"alignment_heads": {[list(head) for head in heads]}, "alignment_shift": {shift:.3f}'])
    sentences, rows, aligner = held_out_sentences()[:options.sentences], [], TextAligner()
    synthesizer = ane.load(options.bundle or "demo")
    synthesizer.backend.keep = True
    tortoise = synthesizer.model.family.name == "tortoise"
    for voice in options.voices if tortoise else options.voices[:1]:
        teacher = TimedFlite(voice, options.flite_libraries)
        request: dict[str, Any] = {"voice": voice, "preset": options.preset, "seed": options.seed,
                                   "word_times": True} if tortoise else {}
        spoken = list(spoken_sentences(synthesizer, teacher, sentences, **request))
        settings = {"voice": voice, "sentences": len(spoken)}
        rows += error_rows(settings, [sentence for sentence, _ in spoken])
        forced = [(aligner.fit(sentence.text, speech.audio, speech.sample_rate).words or (), sentence.true)
                  for sentence, speech in spoken]
        rows.append(error_row("forced alignment by pocketsphinx", settings, np.concatenate(
            [np.array([(word.start, word.end) for word in found]) - true for found, true in forced
             if len(found) == len(true)])))
        if tortoise:
            rows.append(cost_row(synthesizer, [sentence.text for sentence, _ in spoken], settings, request))
            choosing = ane.load(options.bundle or "demo")
            choosing.backend.keep = True
            choosing.word_timer = partial(ChoosingTimer, choosing.backend, choosing.model)
            again = [sentence for sentence, _ in spoken_sentences(choosing, teacher, sentences, **request)]
            rows.append(error_row("heads chosen on the chunk", settings,
                                  np.concatenate([one.predicted - one.true for one in again])))
    return BenchmarkResult(rows, {"model": model_name(options), "preset": options.preset, "seed": options.seed})


def cost_row(synthesizer: Any, sentences: Sequence[str], settings: dict[str, Any],
             request: dict[str, Any]) -> BenchRow:
    """Seconds that decoding and timing words take above decoding alone, as a share of it, by sentence.

    ``figures``: of all sentences together, and of the part after decoding.
    """
    least = np.full((len(sentences), 3), np.inf)        # seconds: decoding alone, with recording, timing
    for _ in range(ROUNDS):
        for best, text in zip(least, sentences, strict=True):
            plain, timed = (synthesizer.speak(text, **{**request, "word_times": words}).seconds_by_phase
                            for words in (False, True))
            best[:] = np.minimum(best, (plain["decode"], timed["decode"], timed["words"]))
    alone, recording, timing = least.T
    figures = {"share_of_all": float((recording + timing).sum() / alone.sum() - 1),
               "share_after_decoding": float(timing.sum() / alone.sum())}
    return BenchRow("words", "share of decoding", "", settings, Spread.of(((recording + timing) / alone - 1).tolist()),
                    figures)


def error_rows(settings: dict[str, Any], sentences: Sequence[TimedSentence]) -> list[BenchRow]:
    """The model's words, and the same words at times in proportion to their letters."""
    shares = [np.array([(word.start, word.end) for word in shared_time(
        sentence.text.split(), (sentence.true[0, 0], sentence.true[-1, 1]))]) for sentence in sentences]
    return [error_row("words", settings, np.concatenate([one.predicted - one.true for one in sentences])),
            error_row("in proportion to letters", settings, np.concatenate(
                [share - one.true for share, one in zip(shares, sentences, strict=True)]))]


def error_row(competitor: str, settings: dict[str, Any], errors: np.ndarray) -> BenchRow:
    """Errors (words, 2) in seconds of starts and ends."""
    sizes = np.abs(errors) * 1000
    figures = {f"{name}_{what}_ms": float(value) for name, column in (("start", sizes[:, 0]), ("end", sizes[:, 1]))
               for what, value in (("median", np.median(column)), ("p95", np.percentile(column, 95)))}
    return BenchRow(competitor, "error of starts and ends", "ms", settings, Spread.of(sizes.ravel().tolist()), figures)


def options_of(add: Callable[..., Any]) -> None:
    from ane.commands.arguments import comma_separated, natural, positive

    add("--voices", type=comma_separated, default=["rms", "slt"], metavar="V,…", help="(default: rms,slt)")
    add("--sentences", type=positive, default=40, metavar="N", help="(default: 40)")
    add("--preset", default="fastest", help="of Tortoise (default: %(default)s)")
    add("--seed", type=natural, default=1, metavar="N", help="(default: 1)")
    add("--flite-libraries", metavar="DIR", help="flite's shared libraries (default: the system's)")
    add("--choose", action="store_true", help="choose heads, and measure nothing")
    add("--layers", type=positive, default=100, metavar="N", help="for --choose: only the first N layers")
    add("--most", type=positive, default=6, metavar="N", help="for --choose: heads at most (default: 6)")


def unavailable(options: argparse.Namespace) -> str | None:
    import importlib.util

    from ane.system.errors import UserError

    if importlib.util.find_spec("pocketsphinx") is None:
        return "pocketsphinx is not installed: pip install 'tortoise-ane[test]'"
    try:
        TimedFlite("rms", options.flite_libraries)
    except UserError as error:
        return str(error)
    return None


BENCHMARK = Benchmark(measure_words, "errors of word times against the teacher's", options_of,
                      "--sentences 2 --voices rms", unavailable, uses=())
