"""The embedded bundle heart and the tables of ``ane.text.phonemes``, from the package hibari-tts.

    python -m training.fast_voice           # writes ane/demo/heart and ane/text/phonemes/data

Nothing is trained. The int8 weights of hibari.onnx stay int8, each with its scale next to it, and the graph itself is
cut into the stages that ONNX Runtime computes (``training.voice_graphs``).
"""

import argparse
import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

from ane.bundles.bundle import Bundle
from ane.bundles.hashes import record
from ane.bundles.manifest import Manifest, NetworkRecord, write_manifest
from ane.bundles.packages import PUBLISHED, WEIGHTS, FunctionRecord, PackageRecord, sections_of
from ane.bundles.weights import SCALE
from ane.models.hibari.config import HibariConfig
from ane.system.version import version
from benchmarks.packages import PACKAGES, package_folder
from training.voice_graphs import write_stages

ROOT = Path(__file__).parents[1]
BUNDLE, TABLES = ROOT / "ane/demo/heart", ROOT / "ane/text/phonemes/data"
PACKAGE = PACKAGES["hibari-tts"]
DESCRIPTION = ("The synthetic voice heart: the model of hibari-tts 0.2.1 (Maureese Williams), which learned from "
               "speech of Kokoro-82M's voice af_heart (hexgrad).")
LAYER_PARTS = {"qkv": "self_attn.in_proj_bias", "out": "self_attn.out_proj.bias", "linear1": "linear1.bias",
               "linear2": "linear2.bias"}


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
    """The bundle of hibari.onnx, with its notice. Other files in ``folder``, such as MODEL.md, stay."""
    weights = int8_weights(model)
    stages = folder / "packages/hibari-int8.onnx"
    stages.mkdir(parents=True, exist_ok=True)
    file = f"{stages.relative_to(folder)}/hibari.safetensors"       # torch and ONNX Runtime read the same file
    save_file(weights, folder / file)
    (folder / file).chmod(0o644)
    graphs = write_stages(model, folder / file, stages)
    package = PackageRecord(
        "hibari", "int8", str(stages.relative_to(folder)),
        [record(folder, str(path.relative_to(folder))) for path in (folder / file, *graphs)],
        {path.stem: FunctionRecord(path.stem, {}) for path in graphs}, format="onnx",
        source={WEIGHTS: record(folder, file).sha256, PUBLISHED: model.name})
    (folder / "NOTICE").write_text(notice, encoding="utf-8")
    parameters = sum(value.size for key, value in weights.items() if not key.endswith(SCALE))
    write_manifest(folder, Manifest(
        name="heart", precision="fp32", trained=True, default_voice="heart", description=DESCRIPTION,
        networks={"hibari": NetworkRecord(**asdict(record(folder, file)), config=HibariConfig(),
                                          parameters=parameters)},
        licence="Apache-2.0", voices={},
        source={"package": f"{PACKAGE.name} {PACKAGE.version}", "sha256": PACKAGE.sha256, "file": model.name},
        created_by=f"tortoise-ane {version()}", clones=False, family="hibari", sections=sections_of([package])))
    return Bundle(folder)


def int8_weights(path: Path) -> dict[str, np.ndarray]:
    """The state dict of hibari.onnx: an int8 tensor KEY of (O, I) has its scale at KEY.scale, (1,) float32.

    The graph names biases by their keys. Each is added to MatMulInteger(x, W), whose other factors are the scales.
    """
    graph = onnx.load(path).graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    found = {key: value for key, value in values.items() if key.startswith(("m.", "pn."))}
    for node in graph.node:
        bias = next((name for name in node.input if name in found and name.endswith("bias")), None)
        product = next((makers[name] for name in node.input if name != bias and name in makers), None)
        if node.op_type != "Add" or bias is None or product is None or product.op_type != "Mul":
            continue
        cast = next(makers[name] for name in product.input if makers[name].op_type == "Cast")
        name = makers[cast.input[0]].input[1]
        base = name.removesuffix("_quantized")
        if values[f"{base}_zero_point"] != 0:
            raise ValueError(f"{name} has a zero point")
        key = f"{bias.removesuffix('bias')}weight"
        found[key] = np.ascontiguousarray(values[name].T)
        found[f"{key}{SCALE}"] = values[f"{base}_scale"].reshape(1)
    return found


def write_tables(assets: Path, folder: Path) -> None:
    """The dictionaries, the tagger and the network for unknown words, from the assets of hibari-tts."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, region in product(("gold", "silver"), ("us", "gb")):
        name = kind if region == "us" else f"{kind}_gb"
        write_table(folder / f"{name}.tsv.gz", {word: entry_line(entry) for word, entry in
                                                read_json(assets / f"lexicon_{region}_{kind}.json.gz").items()})
    tagger = read_json(assets / "tagger.json.gz")
    tagger["weights"]["b"] = dict.fromkeys(tagger["tags"], 0.0) | tagger["weights"]["b"]
    write_table(folder / "tags.tsv.gz", tagger["tagdict"])
    write_table(folder / "vocabulary.tsv.gz", dict.fromkeys(tagger["vocab"], ""))
    write_table(folder / "weights.tsv.gz", {
        feature: " ".join(f"{tag}={weight:g}" for tag, weight in weights.items())
        for feature, weights in tagger["weights"].items()})
    characters = json.loads((assets / "oov.json").read_text(encoding="utf-8"))
    (folder / "characters.txt").write_text("".join("".join(characters[side]) + "\n" for side in ("in", "out")),
                                           encoding="utf-8")
    save_file({key: value.astype(np.float16) for key, value in letter_weights(assets / "oov.onnx").items()},
              folder / "unknown_words.safetensors")


def letter_weights(path: Path) -> dict[str, np.ndarray]:
    """The weights of the network for unknown words; matrices are (I, O), in the order of their use."""
    values = {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    matrices = iter([value for name, value in values.items() if name.startswith("onnx::MatMul")])
    found = {"emb": values["m.emb.weight"], "pos": values["m.pos"], "head.bias": values["m.head.bias"],
             **{f"norm.{part}": values[f"m.norm.{part}"] for part in ("weight", "bias")}}
    for layer in range(4):
        for name, bias in LAYER_PARTS.items():
            found |= {f"{layer}.{name}.bias": values[f"m.layers.{layer}.{bias}"],
                      f"{layer}.{name}.weight": next(matrices)}
        found |= {f"{layer}.{norm}.{part}": values[f"m.layers.{layer}.{norm}.{part}"]
                  for norm in ("norm1", "norm2") for part in ("weight", "bias")}
    return found | {"head.weight": next(matrices)}


def entry_line(entry: str | Mapping[str, str | None]) -> str:
    if isinstance(entry, str):
        return entry
    return "\t".join(f"{tag}={phonemes or ''}" for tag, phonemes in entry.items())


def write_table(path: Path, entries: Mapping[str, str]) -> None:
    lines = (f"{key}\t{value}\n".encode() for key, value in
             sorted(entries.items(), key=lambda item: item[0].encode()))
    path.write_bytes(gzip.compress(b"".join(lines), 9, mtime=0))


def read_json(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


if __name__ == "__main__":
    main()
