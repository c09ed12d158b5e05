"""TensorRT's engines: one for a range of shapes, built once and kept on disk.

ONNX Runtime's TensorRT provider builds an engine for the shapes of a profile when a session is first run, which takes
minutes at official size. Every graph here has free axes, so an engine takes every length of its bucket without padding;
of the buckets that fit, the one with the least room beyond is taken. An engine is good for one model, profile,
precision, GPU and set of libraries: all of these are in its key, and so an old one is never met by what it is not for.

What is decided here is tested anywhere; that TensorRT does as it is told needs an NVIDIA GPU::

    pytest tests/cuda
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from ane.system import paths
from ane.system.files import read_json, replacing

FOLDER, RECORD = "engines", "engine.json"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
COUNTED = frozenset({"batch", "lanes", "places"})       # axes that have ``BATCHES``; all others have ``LENGTHS``
LIBRARIES = ("onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """The shapes that an engine takes, by input: the smallest, and the largest, which it is built to be fast at."""

    least: tuple[tuple[str, Shape], ...]
    most: tuple[tuple[str, Shape], ...]

    def options(self) -> dict[str, str]:
        """As ONNX Runtime's provider takes it: "mel:1x80x64,noise:1x64x74"."""
        least, most = (",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes)
                       for shapes in (self.least, self.most))
        return {"trt_profile_min_shapes": least, "trt_profile_opt_shapes": most, "trt_profile_max_shapes": most}


def bucket(size: int, edges: Sequence[int]) -> tuple[int, int]:
    """The least range that takes a size: from behind the edge before to the next; beyond all edges, its own multiple
    of the last."""
    last = edges[-1]
    if size > last:
        high = -(-size // last) * last
        return high - last + 1, high
    high = next(edge for edge in edges if edge >= size)
    return max((edge for edge in edges if edge < high), default=0) + 1, high


def profile(axes: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Shape], fixed: bool = False) -> Profile:
    """The profile for inputs of these shapes.

    Args:
        axes: of each input: sizes of those that are fixed in the graph, names of the free ones. The name
            "frames_and_10" stands for ten more than "frames".
        fixed: these shapes alone: buffers that do not move.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        for axis, size in zip(axes[name], shape, strict=True):
            if isinstance(axis, str) and "_and_" not in axis:
                ranges[axis] = (size, size) if fixed else bucket(size, BATCHES if axis in COUNTED else LENGTHS)

    def sized(axis: int | str, end: int) -> int:
        if isinstance(axis, int):
            return axis
        base, _, more = axis.partition("_and_")
        return ranges[base][end] + int(more or 0)

    least, most = (tuple((name, tuple(sized(axis, end) for axis in axes[name])) for name in shapes) for end in (0, 1))
    return Profile(least, most)


def axes_of(graph: Path) -> dict[str, list[int | str]]:
    """The axes of a graph's inputs, its weights unread."""
    import onnx

    inputs = onnx.load(graph, load_external_data=False).graph.input
    return {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in inputs}


@dataclass(frozen=True)
class Machine:
    """What an engine is built for: the GPU with its driver, and the libraries with their versions."""

    gpu: str
    libraries: tuple[tuple[str, str], ...]


def this_machine() -> Machine:
    """The first NVIDIA GPU; "" where there is none, or no nvidia-smi."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=20)
        gpu = said.stdout.splitlines()[0].strip() if said.returncode == 0 and said.stdout.strip() else ""
    except (OSError, subprocess.TimeoutExpired):
        gpu = ""
    versions = {}
    for library in LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return Machine(gpu, tuple(versions.items()))


@dataclass(frozen=True)
class Record:
    """What lies beside an engine: what it was built from and for."""

    graph: str
    content: str
    precision: str
    profile: dict[str, str]
    gpu: str
    libraries: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        try:
            return cls(**read_json(folder / RECORD))
        except Exception:       # damaged or of another version: nobody asks for it again
            return None

    def stale(self, machine: Machine) -> str:
        """Why no start on this machine will ask for it again, or ""."""
        if machine.gpu and self.gpu != machine.gpu:
            return f"for the GPU {self.gpu}"
        return "" if self.libraries == dict(machine.libraries) else "for other versions of ONNX Runtime or TensorRT"


class Engines:
    """Options that make ONNX Runtime keep TensorRT's engines and timings below ``folder`` (default: the user's cache).

    ``afresh``: engines that are there are thrown away when they are first asked for.
    """

    def __init__(self, folder: Path | None = None, machine: Machine | None = None, afresh: bool = False):
        self.folder, self.afresh = folder or paths.cache_dir() / FOLDER, afresh
        self._machine, self._seen = machine, set()

    @cached_property
    def machine(self) -> Machine:
        return self._machine or this_machine()

    def options(self, graph: Path, content: str, precision: str, shapes: Profile) -> dict[str, str]:
        """The provider's options for an engine of a graph: ``content`` is the hash of its files.

        Raises:
            UserError: the cache cannot be written.
        """
        record = Record(graph.name, content, precision, shapes.options(), self.machine.gpu,
                        dict(self.machine.libraries))
        place = self.folder / key(record)
        if self.afresh and place not in self._seen:
            shutil.rmtree(place, ignore_errors=True)
        self._seen.add(place)
        if Record.read(place) != record:
            with replacing(place / RECORD) as temporary:
                temporary.write_text(json.dumps(asdict(record)), encoding="utf-8")
        else:
            with suppress(OSError):         # another user's cache
                os.utime(place / RECORD)    # when it was last used
        return {**shapes.options(), "trt_engine_cache_enable": "1", "trt_engine_cache_path": str(place),
                "trt_timing_cache_enable": "1", "trt_timing_cache_path": str(self.folder),
                "trt_fp16_enable": str(int(precision == "fp16"))}


def key(record: Record) -> str:
    """Of an engine's folder: changes with all that the engine depends on."""
    stated: Any = asdict(record)
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:32]
