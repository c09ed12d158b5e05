"""Merge packages with one function each into one package, which stores every weight once.

coremltools' ``save_multifunction`` parses every program, infers all types again, and writes the program out. For the 16
functions of a tiny diffusion decoder, this takes 94 s, and several copies of the weights in memory. This module copies
the protobuf messages and replaces only the offsets of weights. It finds equal weights by their hashes, and copies
weights from file to file. For the same 16 functions, this takes 1 s.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from google.protobuf.message import DecodeError

from ane.backends.mil.package import METADATA, model_messages
from ane.system.files import replacing

ALIGNMENT = 64
HEADER = np.dtype([("count", "<u4"), ("version", "<u4"), ("reserved", "<u8", (7,))])
MODEL = Path("Data/com.apple.CoreML/model.mlmodel")  # path within a package
WEIGHTS = MODEL.parent / "weights" / "weight.bin"
BLOB_FILE = "@model_path/weights/weight.bin"


def merge(parts: Iterable[tuple[str, Path]], destination: Path) -> None:
    """Add functions to the package ``destination``. Create it if it does not exist.

    The package is valid after each added function. If a call is interrupted, a later call can add the missing
    functions. The first function of a package is its default function.

    Args:
        parts: For each function, its name in the merged package, and a package that holds it under the name "main".
            When ``merge`` asks the iterator for the next package, the iterator may delete the previous package. This
            saves disk space, because every package has its own copy of the network's weights.
        destination: The merged package.
    """
    merged, model = model_messages().Model(), destination / MODEL
    if model.is_file():
        merged.ParseFromString(model.read_bytes())
    with ExitStack() as stack:
        weights = None
        for name, path in parts:
            if not destination.exists():
                shutil.copytree(path, destination, ignore=shutil.ignore_patterns(MODEL.name, WEIGHTS.name))
            weights = weights or stack.enter_context(WeightBlobs(destination / WEIGHTS, merged))
            part = model_messages().Model()
            part.ParseFromString((path / MODEL).read_bytes())
            weights.move(part, path / WEIGHTS)
            _append(merged, name, part)
            with replacing(model) as temporary:
                temporary.write_bytes(merged.SerializeToString())


def merged_functions(package: Path) -> list[str]:
    """List the functions in a package that an interrupted ``merge`` left. If the package is damaged, delete it."""
    merged = model_messages().Model()
    try:
        for leftover in package.rglob(".*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        merged.ParseFromString((package / MODEL).read_bytes())
        with WeightBlobs(package / WEIGHTS, merged):
            return [function.name for function in merged.description.functions]
    except (OSError, ValueError, DecodeError):
        shutil.rmtree(package, ignore_errors=True)
        return []


def _append(merged: Any, name: str, part: Any) -> None:
    """Copy the function "main" and its description from the message ``part`` to the message ``merged``, as ``name``."""
    if not merged.description.functions:
        merged.specificationVersion = part.specificationVersion
        merged.mlProgram.version = part.mlProgram.version
        merged.description.defaultFunctionName = name
    merged.mlProgram.functions[name].CopyFrom(part.mlProgram.functions["main"])
    description = merged.description.functions.add()
    description.name = name
    description.input.extend(part.description.input)
    description.output.extend(part.description.output)
    description.state.extend(part.description.state)


class WeightBlobs:
    """A package's weight file, to which blobs can be added. A blob is the content of one weight.

    The file has a header, then for each blob a record and the blob's bytes. Records and bytes are aligned.

    Args:
        path: Path of the file. The file need not exist.
        merged: Message that refers to blobs of the file. The bytes after the last of these blobs are overwritten.

    Raises:
        ValueError: The file ends before a blob to which the message refers.
    """

    def __init__(self, path: Path, merged: Any):
        self.offsets: dict[tuple, int] = {}  # key of a blob's content → offset of the blob's record
        end = HEADER.itemsize
        known = {blob.offset for blob in blobs(merged)}
        data = np.memmap(path, np.uint8, "r") if known else None
        for offset in sorted(known):
            key, _, content = _blob(data, offset)
            self.offsets[key], end = offset, offset + METADATA.itemsize + len(content)
        del data
        self.file = path.open("r+b" if known else "wb")
        self.file.truncate(end)
        self.file.seek(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        header = np.zeros(1, HEADER)
        header["count"], header["version"] = len(self.offsets), 2
        self.file.seek(0)
        self.file.write(header.tobytes())
        self.file.close()

    def move(self, part: Any, weights: Path) -> None:
        """Copy blobs from the file ``weights`` to this file, and make the message ``part`` refer to the copies.

        A blob that this file already has is not copied again.
        """
        data = np.memmap(weights, np.uint8, "r") if weights.is_file() else None
        moved: dict[int, int] = {}
        for blob in blobs(part):
            if blob.offset not in moved:
                moved[blob.offset] = self._add(data, blob.offset)
            blob.offset, blob.fileName = moved[blob.offset], BLOB_FILE
        self.file.flush()

    def _add(self, data: np.ndarray, offset: int) -> int:
        key, record, content = _blob(data, offset)
        if key not in self.offsets:
            self.file.write(bytes(-self.file.tell() % ALIGNMENT))
            self.offsets[key] = self.file.tell()
            moved = np.array([record], METADATA)
            moved["offset"] = self.offsets[key] + METADATA.itemsize
            self.file.write(moved.tobytes())
            self.file.write(content)  # type: ignore[call-overload]
        return self.offsets[key]


def _blob(data: np.ndarray, offset: int) -> tuple[tuple, Any, np.ndarray]:
    """Read the blob whose record is at ``offset``. Return a key that equal blobs share, the record and the content."""
    if offset + METADATA.itemsize > len(data):
        raise ValueError(f"the blob at byte {offset} is cut off")
    record = data[offset : offset + METADATA.itemsize].view(METADATA)[0]
    content = data[int(record["offset"]) : int(record["offset"]) + int(record["bytes"])]
    if len(content) < int(record["bytes"]):
        raise ValueError(f"the blob at byte {offset} is cut off")
    return (
        (int(record["type"]), int(record["padding"]), len(content), hashlib.sha256(content).digest()),
        record,
        content,
    )


def blobs(model: Any) -> Iterator:
    """Yield every reference to the weight file in a model's program.

    Attributes and arguments of operations have them.
    """
    for function in model.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for operation in block.operations:
                values = [
                    *operation.attributes.values(),
                    *(
                        binding.value
                        for argument in operation.inputs.values()
                        for binding in argument.arguments
                        if binding.WhichOneof("binding") == "value"
                    ),
                ]
                yield from (value.blobFileValue for value in values if value.WhichOneof("value") == "blobFileValue")
