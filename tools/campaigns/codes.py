"""Count the codes and the misheard words that change with the engine or precision of the decoder.

Run ``python -m tools.campaigns codes mlx:fp32 mil:fp16:8bit -o FILE``. An engine is given as ``BACKEND:PRECISION``, and
its result is added to FILE. For ``mil:fp16:PRECISION``, the decoder becomes a Core ML package in PRECISION, which the
interpreter runs with fp16 rounding. The model is `demo`. All engines draw with the same seeds. torch in float32 is the
reference for codes, and makes the sound of all engines' latents. Whisper base listens to it.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.backends.engines import package_runtime
from ane.backends.packaged.backend import PackagedBackend
from ane.bundles import Bundle, open_model
from ane.bundles.package_records import PackageFolder
from ane.models.tortoise.sampling import InverseCdfSampler
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.vocoding import SourceFilterSound
from ane.system.files import read_json, write_json
from ane.text import normalise_english
from ane.text.tokenizer import Tokenizer
from ane.voices import load_voice
from benchmarks.listening import edits, words
from benchmarks.yardsticks import WhisperRecogniser
from converters.coreml.coreml_package import CoreMLOptions, write_package
from tests.decoding import ChunkPrompt, decode
from training.text import held_out_sentences

SENTENCES = 20
VOCODER = "source_filter"  # of latents, in demo


def load_engine(model: Bundle, backend: str, precision: str, folder: Path) -> Backend:
    """Load a backend. For Core ML packages, first build a package of only the decoder in ``folder``."""
    if not backend.startswith("mil"):
        return load_backend(backend, model, precision)
    options = CoreMLOptions(precision, lanes=(1,), caches=("io",), buckets={"prefill": (128,), "step": (512,)})
    package = write_package(model, "autoregressive", options, folder)
    return PackagedBackend(
        model,
        package_runtime(*backend.split(":")),
        load_backend("torch:cpu", model, "fp32"),
        unpublished=PackageFolder(folder, [package]),
    )


@dataclass(frozen=True)
class Spoken:
    """The codes of every sentence, and the words that Whisper base misheard in all of them."""

    codes: list[list[int]]
    misheard: int
    words: int


def spoken(backend: str, precision: str) -> Spoken:
    """Speak every sentence with a separate seed, in the model's default preset, and listen to it."""
    model = open_model("demo")
    config = model.config("autoregressive")
    voice = load_voice(model.path / "voices" / f"{model.default_voice}.safetensors")
    tokenizer = Tokenizer(model.tokenizer)
    sampling = TortoiseSettings.of("fastest", model.settings).sampling
    prompts = [
        ChunkPrompt(voice.ar, tokenizer.encode(text), [InverseCdfSampler(np.random.default_rng(seed))])
        for seed, text in enumerate(held_out_sentences()[:SENTENCES])
    ]
    with tempfile.TemporaryDirectory() as folder:
        engine = load_engine(model, backend, precision, Path(folder))
        candidates = [next(decode(engine, [prompt], config, sampling, lanes=1))[0] for prompt in prompts]
    torch, recogniser, pairs = load_backend("torch:cpu", model, "fp32"), WhisperRecogniser(), []
    for text, candidate in zip(held_out_sentences()[:SENTENCES], candidates, strict=True):
        source = SourceFilterSound(torch, VOCODER, model.config(VOCODER), np.random.default_rng(0))
        audio = np.concatenate(list(source.finish(candidate.hidden)))
        heard = recogniser.transcribe(audio, 24000)
        pairs.append([words(normalise_english(sentence)) for sentence in (text, heard)])
    return Spoken(
        [candidate.codes for candidate in candidates],
        sum(edits(expected, heard) for expected, heard in pairs),
        sum(len(expected) for expected, _ in pairs),
    )


def compared(reference: Spoken, other: Spoken) -> dict[str, int]:
    """Count the sentences whose codes are all equal, the codes before the first difference, and misheard words."""
    expected, drawn = reference.codes, other.codes
    same = [
        next(
            (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
            min(len(one), len(other)),
        )
        for one, other in zip(expected, drawn, strict=True)
    ]
    return {
        "sentences": len(expected),
        "with all codes equal": sum(map(list.__eq__, expected, drawn)),
        "codes": sum(map(len, expected)),
        "codes before the first that differs": sum(same),
        "words misheard": other.misheard,
        "words": other.words,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", metavar="BACKEND:PRECISION")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args(arguments)
    expected = spoken("torch:cpu", "fp32")
    results = read_json(args.output) if args.output.exists() else {}
    for engine in args.engines:
        backend, _, precision = engine.rpartition(":")
        results[engine] = compared(expected, spoken(backend, precision))
        write_json(args.output, {"model": open_model("demo").identity[:16]} | results)
        print(engine, json.dumps(results[engine]))
    return 0
