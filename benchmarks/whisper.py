"""Compare `ane transcribe` with openai-whisper, with the same trained weights: texts, tokens and word errors.

Some recordings are from packages (``benchmarks.data_packages``): people who read, and short samples. The voices of
hibari and Kokoro speak others. Some are made harder: a long silence between two sentences, noise over speech, or only
noise. A multilingual model also transcribes and translates other languages.

Both programs decode greedily. If a text is improbable, they decode it again at a higher temperature, and draw tokens at
random. To make both draw the same random numbers, this file replaces openai-whisper's ``Categorical`` by
``sample_token``.

Install openai-whisper first: ``pip install openai-whisper==20250625``, also with --target into a folder on PYTHONPATH.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ane.audio import read_audio, resample
from ane.backends import load_backend
from ane.bench.records import BenchRow, Spread
from ane.bundles import Bundle, open_model
from ane.commands.arguments import comma_separated
from ane.models.whisper.decoding import sample_token
from ane.models.whisper.transcription import Transcriber, TranscriptionOptions
from ane.system.errors import UserError
from ane.text import normalise_english
from benchmarks.data_packages import package_folder, whisper_folder
from benchmarks.harness import Benchmark, BenchmarkResult
from benchmarks.imports import imported
from benchmarks.listening import edits, words
from benchmarks.teachers import teacher_speech
from training.text import held_out_sentences

RATE = 16000
TEACHERS = (
    "hibari heart",
    "kokoro af_heart",
    "kokoro am_michael",
    "kokoro bf_emma",
    "kokoro bm_fable",
    "kokoro af_nicole",
)
READERS = ("beckett", "clone-test", "endgame_nagg_nell", "two_cities")
LANGUAGES = ("es", "fr", "it", "pt", "pl", "hi", "ja", "zh")
TRANSLATED = ("es", "fr", "it")
SYSTEMS = ("torch:cpu/fp32", "torch:cpu/bf16", "torch:cpu/fp16", "torch:cpu/int8")


@dataclass(frozen=True)
class Recording:
    """A recording to transcribe.

    Attributes:
        name: Name of the recording.
        kind: Kind of the recording: "read", "sample", "spoken", "silence", "noise", "language" or "translation".
        audio: Samples at 16 kHz, (S,) float32.
        text: The text that is spoken, or "" if it is not known.
        task: "transcribe" or "translate".
    """

    name: str
    kind: str
    audio: np.ndarray = field(repr=False)
    text: str = ""
    task: str = "transcribe"


@dataclass(frozen=True)
class Heard:
    """A program's transcript of a recording, with its tokens, its language, and the highest temperature it needed."""

    text: str
    tokens: tuple[int, ...]
    temperature: float
    language: str


def loaded(path: Path) -> np.ndarray:
    return resample(*read_audio(path), RATE)


def recordings(multilingual: bool, count: int) -> Iterator[Recording]:
    """Yield all recordings. Each of the ``TEACHERS`` speaks ``count`` sentences."""
    moonshine = package_folder("moonshine-voice") / "moonshine_voice" / "assets"
    samples = package_folder("pytest-audioeval") / "pytest_audioeval" / "samples" / "audio"
    for name in READERS:
        yield Recording(name, "read", loaded(moonshine / f"{name}.wav"))
    for path in sorted((samples / "en").glob("*.wav")):
        yield Recording(path.stem, "sample", loaded(path), path.with_suffix(".txt").read_text(encoding="utf-8"))
    sentences = held_out_sentences()[: count * len(TEACHERS)]
    spoken = []
    for index, text in enumerate(sentences):
        teacher = TEACHERS[index % len(TEACHERS)]
        spoken.append(resample(*teacher_speech(teacher)(text), RATE))
        yield Recording(f"{teacher} {index}", "spoken", spoken[-1], text)
    random = np.random.default_rng(0)

    def noise(samples: int, level: float) -> np.ndarray:
        return (level * random.standard_normal(samples)).astype(np.float32)

    pause = noise(35 * RATE, 1e-4)
    yield Recording(
        "35 s of quiet noise",
        "silence",
        np.concatenate((spoken[0], pause, spoken[1])),
        f"{sentences[0]} {sentences[1]}",
    )
    yield Recording(
        "35 s of zeros", "silence", np.concatenate((spoken[0], 0 * pause, spoken[1])), f"{sentences[0]} {sentences[1]}"
    )
    for decibels in (10, 0, -10):
        level = float(np.sqrt(np.mean(spoken[2] ** 2)) * 10 ** (-decibels / 20))
        yield Recording(f"noise at {decibels} dB", "noise", spoken[2] + noise(len(spoken[2]), level), sentences[2])
    yield Recording("noise alone", "noise", noise(10 * RATE, 0.1))
    for language in LANGUAGES if multilingual else ():
        for path in sorted((samples / language).glob("pangrama.wav")):
            yield Recording(f"{language} {path.stem}", "language", loaded(path))
            if language in TRANSLATED:
                yield Recording(f"{language} {path.stem}, translated", "translation", loaded(path), task="translate")


class OpenAiWhisper:
    """openai-whisper with the weights of a checkpoint."""

    def __init__(self, checkpoint: Bundle):
        try:
            import whisper
            from whisper import decoding, model
        except ImportError as error:
            raise UserError(
                f"{error.name} is missing: pip install openai-whisper==20250625, in an environment or "
                "with --target DIR and PYTHONPATH=DIR"
            ) from error
        sizes = asdict(checkpoint.config("encoder")) | asdict(checkpoint.config("decoder"))
        dims = model.ModelDimensions(**{name: sizes[name] for name in model.ModelDimensions.__dataclass_fields__})
        self.network = model.Whisper(dims).eval()
        state = {
            f"{network}.{key}": tensor.float()
            for network in ("encoder", "decoder")
            for key, tensor in checkpoint.tensors(network).items()
        }
        self.network.load_state_dict(state)
        self.transcribe, self.multilingual = whisper.transcribe, self.network.is_multilingual
        self.draws: list[np.random.Generator] = []
        decoding.Categorical = self.drawn  # type: ignore[misc, assignment]
        self.decode = self.network.decode
        self.network.decode = self.decoded

    def decoded(self, mel: torch.Tensor, options: Any) -> Any:
        """Call ``Whisper.decode``, with random generators that depend on the window and the temperature, as ours do."""
        seek = sys._getframe(2).f_locals["seek"]  # a local variable of whisper.transcribe.transcribe
        self.draws = [
            np.random.default_rng((0, seek, round(1000 * options.temperature), candidate))
            for candidate in range(options.best_of or 1)
        ]
        return self.decode(mel, options)

    def drawn(self, logits: torch.Tensor) -> Any:
        """Draw a token for each row of logits, and return an object that takes the place of ``Categorical``.

        The logits are already divided by the temperature.
        """
        tokens = [sample_token(row.numpy(), 1.0, random) for row, random in zip(logits, self.draws, strict=True)]
        return argparse.Namespace(sample=lambda: torch.tensor(tokens))

    def hear(self, recording: Recording) -> Heard:
        language = {} if self.multilingual else {"language": "en"}
        found = self.transcribe(
            self.network,
            recording.audio,
            task=recording.task,
            fp16=False,
            best_of=5,
            temperature=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
            **language,
        )
        segments = [segment for segment in found["segments"] if segment["text"].strip()]
        return Heard(
            found["text"].strip(),
            tuple(token for segment in segments for token in segment["tokens"]),
            max((segment["temperature"] for segment in segments), default=0.0),
            found["language"],
        )


class AneWhisper:
    """The transcription of this package on a backend.

    ``system`` is "BACKEND/PRECISION", or "BACKEND/PRECISION=BUNDLE" for a backend that needs a bundle with packages.
    """

    def __init__(self, checkpoint: Bundle, system: str):
        spec, _, bundle = system.partition("=")
        backend, _, precision = spec.partition("/")
        model = open_model(bundle=Path(bundle)) if bundle else checkpoint
        self.transcriber = Transcriber(model, load_backend(backend, model, precision or "auto", keep=True))

    def hear(self, recording: Recording) -> Heard:
        found = self.transcriber.transcribe(recording.audio, RATE, TranscriptionOptions(task=recording.task))
        return Heard(
            found.text,
            tuple(token for segment in found.segments for token in segment.tokens),
            max((segment.temperature for segment in found.segments), default=0.0),
            found.language,
        )


def measure(options: argparse.Namespace) -> BenchmarkResult:
    torch.set_num_threads(1)
    checkpoint = imported(whisper_folder(options.size))
    reference = OpenAiWhisper(checkpoint)
    chosen = [
        recording
        for recording in recordings(reference.multilingual, options.sentences)
        if not options.only or recording.name in options.only
    ]
    expected = []
    for recording in chosen:
        expected.append(reference.hear(recording))
        print(recording.name, "|", expected[-1].text, flush=True)
    rows = [row_of("openai-whisper", chosen, expected, expected)]
    details: dict[str, Any] = {
        recording.name: {
            "kind": recording.kind,
            "seconds": round(len(recording.audio) / RATE, 1),
            "text": recording.text,
            "openai-whisper": asdict(one) | {"tokens": len(one.tokens)},
        }
        for recording, one in zip(chosen, expected, strict=True)
    }
    for system in options.systems:
        name = system.partition("=")[0]
        ours = AneWhisper(checkpoint, system)
        heard = []
        for recording, wanted in zip(chosen, expected, strict=True):
            heard.append(ours.hear(recording))
            if heard[-1].tokens != wanted.tokens:
                details[recording.name][name] = heard[-1].text
                print(name, recording.name, "|", heard[-1].text, flush=True)
        rows.append(row_of(name, chosen, heard, expected))
    return BenchmarkResult(rows, {"model": options.size, "recordings": len(chosen)}, (), {"recordings": details})


def row_of(system: str, chosen: Sequence[Recording], heard: Sequence[Heard], expected: Sequence[Heard]) -> BenchRow:
    """Make a row with the word errors of a program, and the number of its transcripts that equal openai-whisper's.

    Word errors count only recordings whose text is known and that have no noise.
    """
    pairs = [
        (words(normalise_english(recording.text)), words(normalise_english(one.text)))
        for recording, one in zip(chosen, heard, strict=True)
        if recording.text and recording.kind != "noise"
    ]
    errors = sum(edits(text, found) for text, found in pairs) / max(1, sum(len(text) for text, _ in pairs))
    both = list(zip(heard, expected, strict=True))
    changed = [
        (words(wanted.text), words(one.text))
        for recording, one, wanted in zip(chosen, heard, expected, strict=True)
        if recording.kind in ("read", "sample", "spoken", "silence")
    ]
    figures = {
        "recordings": len(both),
        "same_text": sum(one.text == wanted.text for one, wanted in both),
        "same_tokens": sum(one.tokens == wanted.tokens for one, wanted in both),
        "changed_words": sum(edits(*pair) for pair in changed) / max(1, sum(len(text) for text, _ in changed)),
        "retried": sum(one.temperature > 0 for one in heard),
    }
    return BenchRow(system, "word errors", "share", {}, Spread.of([errors]), figures)


def add_options(add: Callable[..., Any]) -> None:
    add("--size", choices=("base", "tiny.en"), default="base", help="size of Whisper (default: %(default)s)")
    add(
        "--systems",
        type=comma_separated,
        default=SYSTEMS,
        metavar="BACKEND/PRECISION[=BUNDLE],…",
        help="backends and precisions to compare. For onnx and mil, BUNDLE is a bundle with packages (default: torch "
        "in four precisions)",
    )
    add("--sentences", type=int, default=2, metavar="N", help="sentences per voice (default: %(default)s)")
    add(
        "--only",
        type=comma_separated,
        default=(),
        metavar="NAME,…",
        help="names of the recordings to use (default: all)",
    )


BENCHMARK = Benchmark(measure, "Whisper's trained weights compared with openai-whisper", add_options, None, uses=())
