"""Measure how well the voices of a bundle and their teachers speak. A teacher is a voice from which a voice learned.

Each voice speaks the first 40 held-out sentences (training/held_out.txt), or the lines of a file. It speaks them as
`ane say` does by default, or with the presets and speeds that you name. These properties are measured:

- naturalness, from 1 to 5, by DistillMOS
- word errors, by Whisper base
- noise, from 1 to 5, by DNSMOS
- the cosine between the speaker embeddings of the voice and of its teacher
- the median pitch, and the deviation of the pitch in semitones
- length and pitch of each sentence, relative to the teacher's sentence
- silence at the end, and clicks

The 95 % intervals are bootstrapped over sentences. The weights of the networks are fetched once
(``benchmarks.data_packages``).

With --recordings, sound files are measured instead: folders with NNN.wav, one file per sentence, which --keep or
another program has written.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.audio import read_audio, write
from ane.bench.records import BenchRow, Spread
from ane.bundles import Bundle, open_model
from ane.bundles.opening import DEFAULT_BUNDLE
from ane.commands.arguments import comma_separated, positive
from ane.system.errors import UserError
from ane.text import normalise_english
from benchmarks.harness import Benchmark, BenchmarkResult, model_name
from benchmarks.listening import Wave, edits, words
from benchmarks.teachers import teacher_speech
from benchmarks.yardsticks import DistillMos, Dnsmos, SpeakerEncoder, WhisperRecogniser, mean_embedding
from training.text import held_out_sentences

SEED = 7
SENTENCES = 40


@dataclass(frozen=True)
class Sound:
    """The speech of one sentence.

    Attributes:
        text: The sentence.
        audio: Samples, (S,) float32.
        rate: Samples per second.
        ended: Whether the model ended the sentence by itself.
    """

    text: str
    audio: np.ndarray
    rate: int
    ended: bool = True


@dataclass(frozen=True)
class JudgedSentence:
    """The measurements of one sentence. ``errors`` of its ``words`` words are wrong in the transcript."""

    text: str
    transcript: str
    errors: int
    words: int
    distillmos: float
    dnsmos: float
    wave: Wave
    embedding: np.ndarray
    ended: bool


@cache
def judges() -> tuple[WhisperRecogniser, DistillMos, Dnsmos, SpeakerEncoder]:
    return WhisperRecogniser(), DistillMos(), Dnsmos(), SpeakerEncoder()


def judge(sound: Sound) -> JudgedSentence:
    recogniser, distillmos, dnsmos, encoder = judges()
    audio, rate = sound.audio, sound.rate
    transcript = recogniser.transcribe(audio, rate)
    expected, transcribed = (words(normalise_english(text)) for text in (sound.text, transcript))
    return JudgedSentence(
        sound.text,
        transcript,
        edits(expected, transcribed),
        len(expected),
        distillmos.score(audio, rate),
        dnsmos.score(audio, rate),
        Wave.of(audio, rate),
        encoder.embedding(audio, rate),
        sound.ended,
    )


def interval(shares: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Estimate the 95 % interval of ``shares.sum() / weights.sum()`` from 2000 bootstrap samples of the sentences."""
    drawn = np.random.default_rng(0).integers(0, len(shares), (2000, len(shares)))
    means = shares[drawn].sum(axis=1) / weights[drawn].sum(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def quality_row(
    system: str, settings: Mapping[str, Any], judged: Sequence[JudgedSentence], teacher: Sequence[JudgedSentence] | None
) -> BenchRow:
    """Make the row of one voice with one preset and speed.

    Args:
        system: Name of the row.
        settings: Voice, preset and speed.
        judged: Measurements of the sentences.
        teacher: Measurements of the same sentences, spoken by the voice's teacher, or ``None``.
    """
    count = np.array([sentence.words for sentence in judged], dtype=float)
    errors = np.array([sentence.errors for sentence in judged], dtype=float)
    natural = np.array([sentence.distillmos for sentence in judged])
    waves = [sentence.wave for sentence in judged]
    low, high = interval(errors, count)
    figures = {
        "wer": errors.sum() / count.sum(),
        "wer_low": low,
        "wer_high": high,
        "dnsmos": np.mean([sentence.dnsmos for sentence in judged]),
        "f0": np.nanmedian([wave.f0 for wave in waves]),
        "f0_spread": np.nanmean([wave.f0_spread for wave in waves]),
        "loudness_db": np.mean([wave.loudness for wave in waves]),
        "loudness_spread_db": np.std([wave.loudness for wave in waves]),
        "silent_end": max(wave.silent_end for wave in waves),
        "clicks": sum(wave.clicks for wave in waves),
        "broken": sum(not wave.finite for wave in waves),
        "ended": np.mean([sentence.ended for sentence in judged]),
    }
    if teacher is not None:
        speaker = mean_embedding([sentence.embedding for sentence in teacher])
        pairs = [(sentence.wave, other.wave) for sentence, other in zip(judged, teacher, strict=True)]
        figures |= {
            "similarity": np.mean([sentence.embedding @ speaker for sentence in judged]),
            "f0_off": np.nanmedian([sentence.f0 / other.f0 for sentence, other in pairs]) - 1,
            "length": np.mean([sentence.seconds / other.seconds for sentence, other in pairs]),
            "longest": max(sentence.seconds / other.seconds for sentence, other in pairs),
        }
    mean = Spread(
        float(natural.mean()),
        *interval(natural, np.ones(len(natural))),
        float(np.quantile(natural, 0.95)),
        len(natural),
    )
    return BenchRow(system, "DistillMOS", "1 to 5", settings, mean, {name: float(x) for name, x in figures.items()})


def measure(options: argparse.Namespace) -> BenchmarkResult:
    options.bundle = options.bundle or DEFAULT_BUNDLE
    texts = options.texts.read_text(encoding="utf-8").split("\n") if options.texts else held_out_sentences()
    sentences = tuple(filter(None, texts))[: options.sentences]
    rows, misheard = [], {}
    for system, settings, sounds, teacher in systems(options, sentences):
        print(system, *settings.values(), flush=True)
        from_teacher = judged_teacher(teacher, sentences, options.keep)
        judged = [judge(sound) for sound in sounds] if sounds is not None else from_teacher
        rows.append(quality_row(system, settings, judged, from_teacher))
        misheard[" ".join([system, *map(str, settings.values())])] = [
            f"{sentence.text} | {sentence.transcript}" for sentence in judged if sentence.errors
        ]
    settings = {
        "model": model_name(options),
        "sentences": len(sentences),
        **({"texts": options.texts.name} if options.texts else {}),
    }
    return BenchmarkResult(rows, settings, (), {"misheard": misheard})


def systems(
    options: argparse.Namespace, sentences: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any], Iterator[Sound] | None, str | None]]:
    """Yield what to measure: name of the row, settings, sentences, and name of the teacher.

    If the sentences are ``None``, the row measures the teacher itself.
    """
    for folder in options.recordings:
        yield folder, {}, recordings(Path(folder), sentences), options.teacher
    if options.recordings:
        return
    model = open_model(bundle=options.bundle)
    threads = options.threads if model.family.stages else None  # other models choose their number of threads
    synthesizer = ane.load(options.bundle, options.backend, options.precision, threads)
    for voice in options.voices or stored_voices(model):
        teacher, named = options.teacher or teacher_of(model, voice), {} if voice is None else {"voice": voice}
        if judged_teacher(teacher, sentences, options.keep) is not None:
            yield teacher, named, None, teacher
        for preset in options.presets or default_presets(model):
            for speed in options.speeds:
                settings = {**named, **({} if speed == 1 else {"speed": speed})}
                arguments = {**settings, **({"preset": preset} if preset else {})}
                spoken = speak(synthesizer, sentences, arguments)
                name = "-".join([model.name, *map(str, arguments.values())])
                yield preset or model.name, settings, stored_sounds(spoken, options.keep, name), teacher


def speak(synthesizer: Any, sentences: Sequence[str], arguments: Mapping[str, Any]) -> Iterator[Sound]:
    seeded = "seed" in inspect.signature(synthesizer.speak).parameters
    for index, text in enumerate(sentences):
        speech = synthesizer.speak(text, **arguments, **({"seed": SEED + index} if seeded else {}))
        yield Sound(text, speech.audio, speech.sample_rate, not speech.notes)


def recordings(folder: Path, sentences: Sequence[str]) -> Iterator[Sound]:
    for index, text in enumerate(sentences):
        yield Sound(text, *read_audio(folder / f"{index:03d}.wav"))


@cache
def judged_teacher(teacher: str | None, sentences: tuple[str, ...], keep: Path | None) -> list[JudgedSentence] | None:
    """Let a teacher speak the sentences, and measure them.

    Return ``None`` if there is no teacher, or if it cannot speak here. In the latter case, print the reason.
    """
    if teacher is None:
        return None
    try:
        speak_as = teacher_speech(teacher)
        return [
            judge(sound) for sound in stored_sounds((Sound(text, *speak_as(text)) for text in sentences), keep, teacher)
        ]
    except UserError as error:
        print(f"without the teacher, {teacher}: {error}")
        return None


def stored_sounds(sounds: Iterator[Sound], folder: Path | None, name: str) -> Iterator[Sound]:
    """Yield the sounds. If ``folder`` is not ``None``, write each sound to FOLDER/NAME/NNN.wav first."""
    for index, sound in enumerate(sounds):
        if folder is not None:
            path = folder / name.replace(" ", "-") / f"{index:03d}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, sound.audio, sound.rate)
        yield sound


def stored_voices(model: Bundle) -> list[str | None]:
    """List the voices of a bundle, with the default voice first. For a model without stored voices, return [None]."""
    names = [] if model.voices is None else [path.stem for path in model.voices.glob("*.safetensors")]
    return sorted(names, key=lambda name: name != model.default_voice) or [None]


def default_presets(model: Bundle) -> list[str | None]:
    """Return the presets to measure by default. A model other than Tortoise has no presets: return [None].

    For Tortoise, these are the default preset and, if it has no diffusion, a preset with diffusion.
    """
    if model.family.name != "tortoise":
        return [None]
    from ane.models.tortoise.settings import PRESETS, default_preset

    default = default_preset(model.settings)
    return [default] if PRESETS[default].diffusion else [default, "1x10_guided"]


def teacher_of(model: Bundle, voice: str | None) -> str | None:
    """Return the name of a voice's teacher from the bundle's manifest, or ``None``.

    The teacher's name contains the voice's name: the voice michael learned from "kokoro am_michael". If the manifest
    has only one teacher, it is the teacher of every voice.
    """
    manifest = getattr(model, "manifest", None)
    names = manifest.source.get("teachers", []) if manifest else []
    named = [name for name in names if voice in re.split("[ _]", name)]
    return named[0] if named else names[0] if len(names) == 1 else None


def add_options(add: Callable[..., Any]) -> None:
    add(
        "--voices",
        type=comma_separated,
        default=[],
        metavar="NAME,…",
        help="voices to measure (default: all voices that the bundle stores)",
    )
    add(
        "--presets",
        type=comma_separated,
        default=[],
        metavar="NAME,…",
        help="presets to measure (default: the model's default, and also 1x10_guided if the default has no diffusion)",
    )
    add(
        "--speeds",
        type=lambda text: [float(part) for part in comma_separated(text)],
        default=[1.0],
        metavar="X,…",
        help="speeds to measure (default: 1)",
    )
    add(
        "--sentences",
        type=positive,
        default=SENTENCES,
        metavar="N",
        help="speak the first N sentences (default: %(default)s)",
    )
    add("--texts", type=Path, metavar="FILE", help="file whose lines to speak (default: the held-out sentences)")
    add("--teacher", metavar="NAME", help="teacher: hibari heart or kokoro VOICE (default: the manifest's teacher)")
    add(
        "--recordings",
        type=comma_separated,
        default=[],
        metavar="DIR,…",
        help="folders of NNN.wav files to measure instead of speaking",
    )
    add("--backend", default="auto", help="backend (default: auto)")
    add("--precision", default="auto", help="precision (default: auto)")
    add("--keep", type=Path, metavar="DIR", help="folder for the sound files, DIR/NAME/NNN.wav")


BENCHMARK = Benchmark(
    measure, "naturalness and word errors of a bundle's voices", add_options, None, uses=("bundle", "threads")
)
