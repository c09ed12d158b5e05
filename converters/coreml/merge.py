"""Merge one-function packages into one package with several functions that stores each weight once.

coremltools' ``save_multifunction`` parses every program, infers all types again and writes it out. That takes 94 s for
the 16 functions of a tiny diffusion decoder, with several copies of the weights in memory. This module copies the
protobuf messages with new weight offsets, compares weights by content, and copies them from file to file, which takes 1
s for the same 16 functions.
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
MODEL = Path("Data/com.apple.CoreML/model.mlmodel")  # in a package
WEIGHTS = MODEL.parent / "weights" / "weight.bin"
BLOB_FILE = "@model_path/weights/weight.bin"


def merge(parts: Iterable[tuple[str, Path]], destination: Path) -> None:
    """Add the function "main" of each of ``parts`` (new name, package) to one package.

    The first function of a package is its default. The package is whole after each part, so that a later call can add
    the parts that an interrupted one did not reach. ``merge`` reads a part before it asks for the next one. You may
    delete the part then: with its weights, a function of a large network takes as much space as the whole package.
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
    """List the functions of a package that ``merge`` may not have finished, and delete the package if it is damaged."""
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
    """Add the function "main" of the message ``part``, and its description, to ``merged`` as ``name``."""
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
    """A weight file that grows: a header, then a record and the bytes of each blob, all aligned.

    Args:
        path: The file, which may not exist yet.
        merged: The message that refers to the blobs of the file. Bytes after the last of them are overwritten.

    Raises:
        ValueError: The file lacks a blob.
    """

    def __init__(self, path: Path, merged: Any):
        self.offsets: dict[tuple, int] = {}  # content → offset of its record
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
        """Copy the blobs of the file ``weights`` that the message refers to, and point the message to the copies."""
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
    """Return what is equal for equal blobs, and the record and the content of the blob at an offset."""
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
    """Yield every reference to the weight file in a program. Constants are attributes or arguments of operations."""
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
