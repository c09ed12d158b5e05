"""Options of TensorRT: each of its engines takes a range of shapes, is built once and cached on disk.

ONNX Runtime's TensorRT provider builds an engine for the shapes of a profile when a session is first run, which takes
minutes at official size. All graphs have dynamic axes, so an engine takes every length of its bucket without padding.
The name of an engine's folder is a hash of everything that it depends on (model, profile, precision, GPU, library
versions), so an outdated engine is never loaded.

Tests of these options run on any machine; ``pytest tests/cuda`` runs TensorRT itself, on an NVIDIA GPU.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ane.system import paths
from ane.system.errors import UserError
from ane.system.machine import printed

FOLDER = "engines"      # of the cache
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
COUNT_AXES = frozenset({"batch", "lanes", "prefixes"})      # have the buckets ``BATCHES``; other axes ``LENGTHS``
LIBRARIES = ("onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")

Shape = tuple[int, ...]


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
                  fixed: bool = False) -> dict[str, str]:
    """The options of an engine that takes inputs of these shapes; it is optimised for the largest.

    Args:
        axes: of each input: the sizes of fixed axes, the names of dynamic ones. The name "frames_and_10" means ten more
            than "frames".
        fixed: for exactly these shapes, instead of their buckets.

    Returns:
        Of each end of the range the shapes as ONNX Runtime's provider takes them: "mel:1x80x64,noise:1x64x74".
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

    smallest, largest = (",".join(f"{name}:{'x'.join(str(axis_size(axis, end)) for axis in axes[name])}"
                                  for name in shapes) for end in (0, 1))
    return {"trt_profile_min_shapes": smallest, "trt_profile_opt_shapes": largest, "trt_profile_max_shapes": largest}


def input_axes(graph: Path) -> dict[str, list[int | str]]:
    """The axes of a graph's inputs: sizes, or names of dynamic axes. Its weights are not read."""
    import onnx

    inputs = onnx.load(graph, load_external_data=False).graph.input
    return {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in inputs}


def this_machine() -> str:
    """What an engine is built for: the first NVIDIA GPU with its driver, and the versions of the libraries."""
    gpus = printed("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    found = [gpus.partition("\n")[0].strip()]
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{library} {metadata.version(library)}")
    return ", ".join(found)


def engine_options(machine: str, graph: str, content: str, precision: str, axes: Mapping[str, Sequence[int | str]],
                   shapes: Mapping[str, Shape], fixed: bool = False) -> dict[str, str]:
    """The provider's options for an engine of a graph.

    Args:
        machine: as ``this_machine`` describes it. graph: its name. content: hash of its files.
        axes, shapes, fixed: as ``shape_profile`` takes them.

    Raises:
        UserError: the cache cannot be written.
    """
    profile = shape_profile(axes, shapes, fixed)
    described = json.dumps([machine, graph, content, precision, profile], sort_keys=True)
    cache = paths.cache_dir() / FOLDER
    folder = cache / hashlib.sha256(described.encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}; set ANE_HOME to a folder that can be "
                        "written") from error
    with suppress(OSError):         # a cache of another user
        os.utime(folder)            # marks the last use
    return {**profile, "trt_engine_cache_enable": "1", "trt_engine_cache_path": str(folder),
            "trt_timing_cache_enable": "1", "trt_timing_cache_path": str(cache),
            "trt_fp16_enable": str(int(precision == "fp16"))}
