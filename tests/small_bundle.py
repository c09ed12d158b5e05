"""A tiny bundle with Core ML packages, and ways to spoil them."""

import json
from pathlib import Path

import numpy as np

from ane.backends.mil.package import METADATA, Package
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import record
from converters.conversion import convert
from converters.coreml.package import CoreMLOptions
from tests.random_model import write_random_bundle

OPTIONS = CoreMLOptions(lanes=(2,), caches=("io", "state"), buckets={
    "prefill": (32,), "step": (64,), "clvp_text": (32,), "clvp_speech": (32,), "univnet": (14,), "hifigan": (14,)})
NETWORKS = ["autoregressive", "clvp", "contextual_embedder", "rlg_auto", "univnet", "hifigan"]


def write_small_bundle(folder: Path, networks: list[str] | None = None) -> Path:
    """``folder``/plain, and its packages in ``folder``/small."""
    write_random_bundle(folder / "plain")
    return convert(Bundle(folder / "plain"), folder / "small", [OPTIONS], networks or NETWORKS).path


def spoil(bundle: Path, package: str, function: str, value: str) -> None:
    """Turn round the order of the numbers that the convolution ``value`` has for weights, and bundle.json knows it."""
    path = bundle / package
    op = next(op for op in Package(path).function(function).ops if value in op.outputs)
    weight, = op.arguments["weight"]
    blob = Package(path).function(function).constants[weight] if isinstance(weight, str) else weight
    file = path / "Data" / "com.apple.CoreML" / "weights" / blob.file
    data = bytearray(file.read_bytes())
    stated = np.frombuffer(data, METADATA, 1, blob.offset)[0]
    start, size = int(stated["offset"]), int(stated["bytes"])
    data[start:start + size] = np.frombuffer(bytes(data[start:start + size]), np.uint16)[::-1].tobytes()
    file.unlink()           # links to it, of other bundles, keep what they have
    file.write_bytes(data)
    restate(bundle, file)


def restate(bundle: Path, file: Path) -> None:
    """Let bundle.json say what a package's file has become."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    now = record(bundle, file.relative_to(bundle).as_posix())
    for package in manifest["coreml"]["packages"]:
        for stated in package["files"]:
            if stated["file"] == now.file:
                stated.update(sha256=now.sha256, bytes=now.bytes)
    (bundle / "bundle.json").write_text(json.dumps(manifest))
