"""Make the voice heart, and the tables of ``ane.text.phonemes``, from the package hibari-tts.

    python -m training.fast_voice           # writes ane/demo/heart and ane/text/phonemes/data

This trains nothing. The int8 weights of hibari.onnx stay int8, and the bundle stores the scale of each weight next to
it. The graph of hibari.onnx is cut into the parts that ONNX Runtime computes (``ane.models.hibari.published``).
"""

import argparse
import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

from ane.bundles.bundle import Bundle
from ane.bundles.manifest import Manifest, NetworkRecord, write_manifest
from ane.bundles.package_records import WEIGHTS, sections_of
from ane.bundles.weights import SCALE
from ane.models.hibari.published import import_published
from ane.system.version import version
from benchmarks.data_packages import PACKAGES, package_folder

ROOT = Path(__file__).parents[1]
BUNDLE, TABLES = ROOT / "ane/demo/heart", ROOT / "ane/text/phonemes/data"
PACKAGE = PACKAGES["hibari-tts"]
DESCRIPTION = (
    "The synthetic voice heart: the model of hibari-tts 0.2.1 (Maureese Williams), which learned from "
    "speech of Kokoro-82M's voice af_heart (hexgrad)."
)
LAYER_PARTS = {
    "qkv": "self_attn.in_proj_bias",
    "out": "self_attn.out_proj.bias",
    "linear1": "linear1.bias",
    "linear2": "linear2.bias",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.fast_voice", description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, help="folder of the unpacked package (default: it is fetched)")
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="folder of the bundle (%(default)s)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the tables (%(default)s)")
    options = parser.parse_args()
    package = options.package or package_folder(PACKAGE.name)
    assets = package / "hibari" / "assets"
    [notice] = package.glob("*.dist-info/**/NOTICE")
    write_tables(assets, options.tables)
    write_voice(assets / "hibari.onnx", notice.read_text(encoding="utf-8"), options.bundle)


def write_voice(model: Path, notice: str, folder: Path) -> Bundle:
    """Write the bundle of hibari.onnx, with the notice of its authors. Other files in ``folder`` do not change."""
    contents = import_published(model)
    [package] = contents.packages(folder)
    [weights] = [file for file in package.files if file.file.endswith(".safetensors")]
    package = replace(package, source={WEIGHTS: weights.sha256, **package.source})
    (folder / "NOTICE").write_text(notice, encoding="utf-8")
    parameters = sum(value.numel() for key, value in contents.tensors("hibari").items() if not key.endswith(SCALE))
    write_manifest(
        folder,
        Manifest(
            name="heart",
            precision="fp32",
            trained=True,
            default_voice="heart",
            description=DESCRIPTION,
            networks={
                "hibari": NetworkRecord(**asdict(weights), config=contents.configs["hibari"], parameters=parameters)
            },
            licence="Apache-2.0",
            voices={},
            source={"package": f"{PACKAGE.name} {PACKAGE.version}", "sha256": PACKAGE.sha256, "file": model.name},
            created_by=f"tortoise-ane {version()}",
            clones=False,
            family="hibari",
            sections=sections_of([package]),
        ),
    )
    return Bundle(folder)


def write_tables(assets: Path, folder: Path) -> None:
    """Convert the assets of hibari-tts: the dictionaries, the tagger, and the network for unknown words."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, region in product(("gold", "silver"), ("us", "gb")):
        name = kind if region == "us" else f"{kind}_gb"
        write_table(
            folder / f"{name}.tsv.gz",
            {word: entry_line(entry) for word, entry in read_json(assets / f"lexicon_{region}_{kind}.json.gz").items()},
        )
    tagger = read_json(assets / "tagger.json.gz")
    tagger["weights"]["b"] = dict.fromkeys(tagger["tags"], 0.0) | tagger["weights"]["b"]
    write_table(folder / "tags.tsv.gz", tagger["tagdict"])
    write_table(folder / "vocabulary.tsv.gz", dict.fromkeys(tagger["vocab"], ""))
    write_table(
        folder / "weights.tsv.gz",
        {
            feature: " ".join(f"{tag}={weight:g}" for tag, weight in weights.items())
            for feature, weights in tagger["weights"].items()
        },
    )
    characters = json.loads((assets / "oov.json").read_text(encoding="utf-8"))
    (folder / "characters.txt").write_text(
        "".join("".join(characters[side]) + "\n" for side in ("in", "out")), encoding="utf-8"
    )
    save_file(
        {key: value.astype(np.float16) for key, value in letter_weights(assets / "oov.onnx").items()},
        folder / "unknown_words.safetensors",
    )


def letter_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the weights of the network for unknown words. A matrix has the shape (inputs, outputs)."""
    values = {initializer.name: numpy_helper.to_array(initializer) for initializer in onnx.load(path).graph.initializer}
    matrices = iter([value for name, value in values.items() if name.startswith("onnx::MatMul")])
    weights = {
        "emb": values["m.emb.weight"],
        "pos": values["m.pos"],
        "head.bias": values["m.head.bias"],
        **{f"norm.{part}": values[f"m.norm.{part}"] for part in ("weight", "bias")},
    }
    for layer in range(4):
        for name, bias in LAYER_PARTS.items():
            weights |= {
                f"{layer}.{name}.bias": values[f"m.layers.{layer}.{bias}"],
                f"{layer}.{name}.weight": next(matrices),
            }
        weights |= {
            f"{layer}.{norm}.{part}": values[f"m.layers.{layer}.{norm}.{part}"]
            for norm in ("norm1", "norm2")
            for part in ("weight", "bias")
        }
    return weights | {"head.weight": next(matrices)}


def entry_line(entry: str | Mapping[str, str | None]) -> str:
    if isinstance(entry, str):
        return entry
    return "\t".join(f"{tag}={phonemes or ''}" for tag, phonemes in entry.items())


def write_table(path: Path, entries: Mapping[str, str]) -> None:
    lines = (f"{key}\t{value}\n".encode() for key, value in sorted(entries.items(), key=lambda item: item[0].encode()))
    path.write_bytes(gzip.compress(b"".join(lines), 9, mtime=0))


def read_json(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


if __name__ == "__main__":
    main()
