"""Count the sentences whose codes another engine or precision changes, against torch in float32.

Run ``python -m tests.backends.codes mlx:fp32 mlx:8bit -o FILE``. An engine is ``BACKEND:PRECISION``, and its result is
added to FILE. The model is `demo`, or with ``--bundle`` a conversion of it. Both engines draw with the same seeds.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from ane.backends import load_backend
from ane.bundles import open_model
from ane.models.tortoise.sampling import InverseCdfSampler
from ane.models.tortoise.settings import Settings
from ane.system.files import read_json, write_json
from ane.text.tokenizer import Tokenizer
from ane.voices import load_voice
from tests.decoding import ChunkPrompt, decode
from training.text import held_out_sentences

SENTENCES = 20


def drawn_codes(bundle: str, backend: str, precision: str) -> list[list[int]]:
    """The codes of each sentence, with a seed of its own, in the model's default preset."""
    model = open_model(bundle)
    engine, config = load_backend(backend, model, precision), model.config("autoregressive")
    voice = load_voice(model.path / "voices" / f"{model.default_voice}.safetensors")
    tokenizer = Tokenizer(model.tokenizer)
    sampling = Settings.of("fastest", model.settings).sampling
    prompts = [ChunkPrompt(voice.ar, tokenizer.encode(text), [InverseCdfSampler(np.random.default_rng(seed))])
               for seed, text in enumerate(held_out_sentences()[:SENTENCES])]
    return [next(decode(engine, [prompt], config, sampling, lanes=1))[0].codes for prompt in prompts]


def compared(expected: list[list[int]], found: list[list[int]]) -> dict[str, int]:
    """How many sentences have all codes, and how many codes come before the first that differs."""
    same = [next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
                 min(len(one), len(other))) for one, other in zip(expected, found, strict=True)]
    return {"sentences": len(expected), "with all codes equal": sum(map(list.__eq__, expected, found)),
            "codes": sum(map(len, expected)), "codes before the first that differs": sum(same)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", metavar="BACKEND:PRECISION")
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    expected = drawn_codes("demo", "torch:cpu", "fp32")
    results = read_json(args.output) if args.output.exists() else {}
    for engine in args.engines:
        backend, _, precision = engine.rpartition(":")
        results[engine] = compared(expected, drawn_codes(args.bundle, backend, precision))
        write_json(args.output, {"model": open_model("demo").identity[:16]} | results)
        print(engine, json.dumps(results[engine]))  # noqa: T201


if __name__ == "__main__":
    main()
