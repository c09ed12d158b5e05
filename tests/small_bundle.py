"""Make a tiny bundle with Core ML packages, and damage such bundles."""

import shutil
from pathlib import Path

import numpy as np
import onnx

from ane.backends.mil.package import METADATA, Package
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import record
from converters.coreml.coreml_package import CoreMLOptions
from converters.onnx.onnx_package import WEIGHTS_FILE
from tests.conversions import converted
from tests.edits import edit_json
from tests.random_model import write_random_bundle

OPTIONS = CoreMLOptions(
    lanes=(2,),
    caches=("io", "state"),
    buckets={
        "prefill": (32,),
        "step": (64,),
        "clvp_text": (32,),
        "clvp_speech": (32,),
        "univnet": (14,),
        "hifigan": (14,),
    },
)
NETWORKS = ["autoregressive", "clvp", "contextual_embedder", "rlg_auto", "univnet", "hifigan"]


def write_small_bundle(folder: Path, networks: list[str] | None = None) -> Path:
    """Write ``folder``/plain, and that bundle with packages of these networks as ``folder``/small; returns the latter.

    ``folder`` is a temporary one of pytest's. The packages are converted once in a run, by the first test that needs
    one.
    """
    write_random_bundle(folder / "plain")
    # the folder that xdist's workers share
    shared = folder.parent.parent if folder.parent.name.startswith("popen-") else folder.parent
    small = converted(shared, Bundle(folder / "plain"), [OPTIONS], NETWORKS).path
    left_out = [f"{network}-*" for network in NETWORKS if networks and network not in networks]
    shutil.copytree(
        small,
        folder / "small",
        ignore=lambda parent, names: (
            shutil.ignore_patterns(*left_out)(parent, names) if Path(parent).name == "packages" else ()
        ),
    )

    def remove_those_left_out(manifest: dict) -> None:
        packages = manifest["coreml"]["packages"]
        packages[:] = [package for package in packages if (folder / "small" / package["path"]).exists()]

    return edit_json(folder / "small" / "bundle.json", remove_those_left_out).parent


def spoil(bundle: Path, package: str, function: str, value: str) -> None:
    """Reverse the weights of the convolution ``value``, and update bundle.json."""
    path = bundle / package
    op = next(op for op in Package(path).function(function).ops if value in op.outputs)
    (weight,) = op.arguments["weight"]
    blob = Package(path).function(function).constants[weight] if isinstance(weight, str) else weight
    file = path / "Data" / "com.apple.CoreML" / "weights" / blob.file
    data = bytearray(file.read_bytes())
    header = np.frombuffer(data, METADATA, 1, blob.offset)[0]
    start, size = int(header["offset"]), int(header["bytes"])
    data[start : start + size] = np.frombuffer(bytes(data[start : start + size]), np.uint16)[::-1].tobytes()
    file.unlink()  # hard links to the file in other bundles stay unchanged
    file.write_bytes(data)
    record_again(bundle, file)


def spoil_onnx(bundle: Path, package: str, graph: str, module: str) -> None:
    """Add 1 to one number of a module's weight, which the graphs of a package share, and update bundle.json."""
    model = onnx.load(bundle / package / f"{graph}.onnx", load_external_data=False)
    inputs = [
        name
        for node in model.graph.node
        for entry in node.metadata_props
        if f"'network.{module}'" in entry.value
        for name in node.input
    ]
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name in inputs and len(tensor.dims) > 1)
    offset = int(next(entry.value for entry in tensor.external_data if entry.key == "offset"))
    file = bundle / package / WEIGHTS_FILE
    data = bytearray(file.read_bytes())
    data[offset : offset + 4] = (np.frombuffer(data, np.float32, 1, offset) + 1).tobytes()
    file.unlink()
    file.write_bytes(data)
    record_again(bundle, file)


def record_again(bundle: Path, file: Path) -> None:
    """Update the SHA-256 and size of a package's file in bundle.json."""
    current = record(bundle, file.relative_to(bundle).as_posix())

    def update(manifest: dict) -> None:
        for form in ("coreml", "onnx"):
            for package in manifest.get(form, {"packages": []})["packages"]:
                for stated in package["files"]:
                    if stated["file"] == current.file:
                        stated.update(sha256=current.sha256, bytes=current.bytes)

    edit_json(bundle / "bundle.json", update)
