"""Options of TensorRT: each of its engines takes a range of shapes, is built once and cached on disk.

ONNX Runtime's TensorRT provider builds an engine for the shapes of a profile when a session is first run, which takes
minutes at official size. All graphs have dynamic axes, so an engine takes every length of its bucket without padding.
The cache key covers everything that an engine depends on (model, profile, precision, GPU, library versions), so an
outdated engine is never loaded.

Tests of these options run on any machine; ``pytest tests/cuda`` runs TensorRT itself, on an NVIDIA GPU.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from ane.system import paths
from ane.system.files import replacing, write_json
from ane.system.machine import printed
from ane.system.records import stored_record

FOLDER, RECORD = "engines", "engine.json"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
COUNT_AXES = frozenset({"batch", "lanes", "prefixes"})      # have the buckets ``BATCHES``; other axes ``LENGTHS``
LIBRARIES = ("onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeProfile:
    """The shapes that an engine takes, by input: the smallest and the largest. It is optimised for the largest."""

    smallest: tuple[tuple[str, Shape], ...]
    largest: tuple[tuple[str, Shape], ...]

    def options(self) -> dict[str, str]:
        """In the format of ONNX Runtime's provider: "mel:1x80x64,noise:1x64x74"."""
        smallest, largest = (",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes)
                             for shapes in (self.smallest, self.largest))
        return {"trt_profile_min_shapes": smallest, "trt_profile_opt_shapes": largest,
                "trt_profile_max_shapes": largest}


def bucket_range(size: int, edges: Sequence[int]) -> tuple[int, int]:
    """The range of sizes, first to last, that share a bucket with ``size``.

    A bucket ends at each edge, and beyond the last edge at each multiple of it.
    """
    last = edges[-1]
    if size > last:
        high = -(-size // last) * last
        return high - last + 1, high
    high = next(edge for edge in edges if edge >= size)
    return max((edge for edge in edges if edge < high), default=0) + 1, high


def shape_profile(axes: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Shape],
                  fixed: bool = False) -> ShapeProfile:
    """The profile of an engine that takes inputs of these shapes.

    Args:
        axes: of each input: the sizes of fixed axes, the names of dynamic ones. The name "frames_and_10" means ten more
            than "frames".
        fixed: for exactly these shapes, instead of their buckets.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        for axis, size in zip(axes[name], shape, strict=True):
            if isinstance(axis, str) and "_and_" not in axis:
                edges = BATCHES if axis in COUNT_AXES else LENGTHS
                ranges[axis] = (size, size) if fixed else bucket_range(size, edges)

    def axis_size(axis: int | str, end: int) -> int:
        if isinstance(axis, int):
            return axis
        base, _, more = axis.partition("_and_")
        return ranges[base][end] + int(more or 0)

    smallest, largest = (tuple((name, tuple(axis_size(axis, end) for axis in axes[name])) for name in shapes)
                         for end in (0, 1))
    return ShapeProfile(smallest, largest)


def input_axes(graph: Path) -> dict[str, list[int | str]]:
    """The axes of a graph's inputs: sizes, or names of dynamic axes. Its weights are not read."""
    import onnx

    inputs = onnx.load(graph, load_external_data=False).graph.input
    return {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in inputs}


@dataclass(frozen=True)
class NvidiaMachine:
    """What an engine is built for: the GPU with its driver, and the libraries with their versions."""

    gpu: str
    libraries: tuple[tuple[str, str], ...]


def this_machine() -> NvidiaMachine:
    """This machine; ``gpu`` is that of the first NVIDIA GPU, or "" without a GPU or nvidia-smi."""
    gpus = printed("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    versions = {}
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    return NvidiaMachine(gpus.partition("\n")[0].strip(), tuple(versions.items()))


@dataclass(frozen=True)
class TensorRtRecord:
    """The content of ``engine.json`` beside an engine: the graph and the machine that it was built for."""

    graph: str
    content: str
    precision: str
    profile: dict[str, str]
    gpu: str
    libraries: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> "TensorRtRecord | None":
        """The record in a folder; None when it is missing, damaged or of another version."""
        return stored_record(cls, folder / RECORD)

    def stale(self, machine: NvidiaMachine) -> str:
        """The reason why no later run on this machine will use the engine, or ""."""
        if machine.gpu and self.gpu != machine.gpu:
            return f"for the GPU {self.gpu}"
        return "" if self.libraries == dict(machine.libraries) else "for other versions of ONNX Runtime or TensorRT"

    def key(self) -> str:
        """The name of the engine's folder: a hash of all that the engine depends on."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


class TensorRtEngines:
    """Makes ONNX Runtime cache TensorRT's engines and timings below ``folder`` (default: in the user's cache).

    ``rebuild``: an existing engine is deleted when it is first requested.
    """

    def __init__(self, folder: Path | None = None, machine: NvidiaMachine | None = None, rebuild: bool = False):
        self.folder, self.rebuild = folder or paths.cache_dir() / FOLDER, rebuild
        self._machine = machine
        self._requested: set[Path] = set()

    @cached_property
    def machine(self) -> NvidiaMachine:
        return self._machine or this_machine()

    def options(self, graph: Path, content: str, precision: str, shapes: ShapeProfile) -> dict[str, str]:
        """The provider's options for an engine of a graph; ``content`` is the hash of the graph's files.

        Raises:
            UserError: the cache cannot be written.
        """
        record = TensorRtRecord(graph.name, content, precision, shapes.options(), self.machine.gpu,
                                dict(self.machine.libraries))
        folder = self.folder / record.key()
        if self.rebuild and folder not in self._requested:
            shutil.rmtree(folder, ignore_errors=True)
        self._requested.add(folder)
        if TensorRtRecord.read(folder) != record:
            if os.path.lexists(folder / RECORD) and not os.path.isfile(folder / RECORD):
                os.unlink(folder / RECORD)      # such as a named pipe, which ``replacing`` keeps
            with replacing(folder / RECORD) as temporary:
                write_json(temporary, asdict(record))
        else:
            with suppress(OSError):         # a cache of another user
                os.utime(folder / RECORD)   # marks the last use
        return {**shapes.options(), "trt_engine_cache_enable": "1", "trt_engine_cache_path": str(folder),
                "trt_timing_cache_enable": "1", "trt_timing_cache_path": str(self.folder),
                "trt_fp16_enable": str(int(precision == "fp16"))}
