"""Merges one-function packages into one package of several functions, which stores each weight once.

coremltools' ``save_multifunction`` parses every program, infers all types again and writes it out: 94 s for the 16
functions of a tiny diffusion decoder, with several copies of the weights in memory. Here the protobuf messages are
copied with new weight offsets, and weights are compared by content and copied from file to file: 1 s for these 16.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ane.backends.mil.package import METADATA, model_messages

ALIGNMENT = 64
HEADER = np.dtype([("count", "<u4"), ("version", "<u4"), ("reserved", "<u8", (7,))])
MODEL_FOLDER = Path("Data") / "com.apple.CoreML"  # in a package
BLOB_FILE = "@model_path/weights/weight.bin"


def merge(parts: Iterable[tuple[str, Path]], destination: Path) -> None:
    """Write the function "main" of each of ``parts`` (new name, package) into one package.

    The first is the default function. ``destination`` must not exist. A part is read before the next is asked for, so
    that it may be deleted then: with its weights, a function of a large network takes as much as the whole package.
    """
    messages = model_messages()
    parts = iter(parts)
    first = next(parts)
    shutil.copytree(first[1], destination)
    merged = messages.Model()
    with (destination / MODEL_FOLDER / "weights" / "weight.bin").open("wb") as file:
        weights = WeightBlobs(file)
        for name, path in chain([first], parts):
            part = messages.Model()
            part.ParseFromString((path / MODEL_FOLDER / "model.mlmodel").read_bytes())
            weights.move(part, path / MODEL_FOLDER / "weights" / "weight.bin")
            _append(merged, name, part)
        weights.close()
    (destination / MODEL_FOLDER / "model.mlmodel").write_bytes(merged.SerializeToString())


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
    """A weight file being written: a header, then a record and the bytes of each blob, all aligned."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.offsets: dict[tuple, int] = {}  # content → offset of its record
        file.write(bytes(HEADER.itemsize))

    def move(self, part: Any, weights: Path) -> None:
        """Copy the blobs of the file ``weights`` that the message refers to, and point the message to the copies."""
        data = np.memmap(weights, np.uint8, "r") if weights.is_file() else None
        moved: dict[int, int] = {}
        for blob in blobs(part):
            if blob.offset not in moved:
                moved[blob.offset] = self._add(data, blob.offset)
            blob.offset, blob.fileName = moved[blob.offset], BLOB_FILE

    def close(self) -> None:
        header = np.zeros(1, HEADER)
        header["count"], header["version"] = len(self.offsets), 2
        self.file.seek(0)
        self.file.write(header.tobytes())

    def _add(self, data: np.ndarray, offset: int) -> int:
        record = data[offset : offset + METADATA.itemsize].view(METADATA)[0]
        content = data[int(record["offset"]) : int(record["offset"]) + int(record["bytes"])]
        key = int(record["type"]), int(record["padding"]), len(content), hashlib.sha256(content).digest()
        if key not in self.offsets:
            self.file.write(bytes(-self.file.tell() % ALIGNMENT))
            self.offsets[key] = self.file.tell()
            moved = np.array([record], METADATA)
            moved["offset"] = self.offsets[key] + METADATA.itemsize
            self.file.write(moved.tobytes())
            self.file.write(content)  # type: ignore[call-overload]
        return self.offsets[key]


def blobs(model: Any) -> Iterator:
    """Every reference to the weight file in a program: constants are attributes or arguments of operations."""
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
