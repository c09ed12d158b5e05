"""Describe TensorRT's engines: how to build an engine, which lengths it takes, and where to cache it.

An engine is a graph that TensorRT has compiled for a range of input shapes. ONNX Runtime's TensorRT provider builds the
engine when a session first runs, and caches it on disk. Building takes minutes for the official weights. All graphs
have dynamic axes, so an engine takes every length of its range without padding.

The name of an engine's folder is a hash of the model, the shapes, the precision, the GPU and the library versions.
If one of these changes, the provider looks in another folder, so it never loads an outdated engine. ``pytest
tests/cuda`` runs TensorRT on an NVIDIA GPU.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ane.system import paths
from ane.system.checked import validated
from ane.system.errors import system_errors
from ane.system.machine import printed

FOLDER, ENGINE_FOLDER = "engines", "trt_engine_cache_path"  # folder in the cache, and the provider's option for it
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
COUNT_AXES = frozenset({"batch", "lanes", "prefixes"})  # ranges end at ``BATCHES``, for other axes at ``LENGTHS``
LIBRARIES = ("onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")

Shape = tuple[int, ...]
End = Annotated[int, Field(ge=1)]


@validated
class TensorRTOptions:
    """Options for building engines, for the backend onnx:tensorrt.

    Attributes:
        engine_batch: Largest batch that an engine takes. The engine also takes all smaller batches. By default, batch
            sizes are divided into ranges that end at ``BATCHES``, and every range has an engine.
        engine_symbols: Numbers of symbols at which ranges end. Every range has an engine, and a call uses the smallest
            engine that is large enough. The last number is the most symbols that a call may have. By default, ranges
            end at ``LENGTHS``.
        engine_frames: Numbers of mel frames at which ranges end, as for ``engine_symbols``.
        engine_fp16: Whether TensorRT may compute parts of float32 graphs in fp16, where this is faster.
        engine_workspace: GB of GPU memory that TensorRT may use to find the fastest kernels. By default, TensorRT may
            use all memory.
        rebuild_engines: Whether to build engines again that are already in the cache.
    """

    engine_batch: int | None = Field(None, ge=1)
    engine_symbols: tuple[End, ...] = ()
    engine_frames: tuple[End, ...] = ()
    engine_fp16: bool = False
    engine_workspace: float | None = Field(None, gt=0)
    rebuild_engines: bool = False

    def edges(self, axis: str) -> tuple[int, ...]:
        """Return the sizes at which the ranges of an axis end, in ascending order."""
        ends = {
            "batch": (self.engine_batch,) if self.engine_batch else (),
            "symbols": self.engine_symbols,
            "frames": self.engine_frames,
        }.get(axis)
        return tuple(sorted(set(ends))) if ends else BATCHES if axis in COUNT_AXES else LENGTHS


USUAL = TensorRTOptions()


def bucket_range(size: int, edges: Sequence[int]) -> tuple[int, int]:
    """Return the smallest and the largest size of the range that contains ``size``.

    A range ends at each of ``edges``. Beyond the last edge, a range ends at each multiple of the last edge.
    """
    last = edges[-1]
    if size > last:
        high = -(-size // last) * last
        return high - last + 1, high
    high = next(edge for edge in edges if edge >= size)
    return max((edge for edge in edges if edge < high), default=0) + 1, high


def shape_profile(
    axes: Mapping[str, Sequence[int | str]],
    shapes: Mapping[str, Shape],
    lane_lengths: tuple[int, int] | None = None,
    options: TensorRTOptions = USUAL,
) -> dict[str, str]:
    """Return the provider options for the range of shapes that an engine takes.

    The engine is fastest at the largest shape.

    Args:
        axes: Axes of each input: the size of a fixed axis, or the name of a dynamic axis. An axis with the name
            "frames_and_10" is 10 longer than the axis "frames".
        shapes: Shape of each input in the call.
        lane_lengths: For a decoder step, the smallest and largest size of the axis "length". The axis "seen" is longer
            by the prefix and the new columns. All other axes have exactly the sizes in ``shapes``. ``None`` means that
            every axis gets the range of ``bucket_range``.
        options: Options that set the ranges.

    Returns:
        The smallest, the best and the largest shapes as text for the provider, such as "mel:1x80x64,noise:1x64x74".
    """
    ranges: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        for axis, size in zip(axes[name], shape, strict=True):
            if isinstance(axis, str) and "_and_" not in axis:
                ranges[axis] = (size, size) if lane_lengths else bucket_range(size, options.edges(axis))
    if lane_lengths:
        others = ranges["seen"][0] - ranges["length"][0]
        ranges |= {"length": lane_lengths, "seen": (others + lane_lengths[0], others + lane_lengths[1])}

    def axis_size(axis: int | str, end: int) -> int:
        if isinstance(axis, int):
            return axis
        base, _, more = axis.partition("_and_")
        return ranges[base][end] + int(more or 0)

    smallest, largest = (
        ",".join(f"{name}:{'x'.join(str(axis_size(axis, end)) for axis in axes[name])}" for name in shapes)
        for end in (0, 1)
    )
    return {"trt_profile_min_shapes": smallest, "trt_profile_opt_shapes": largest, "trt_profile_max_shapes": largest}


def input_axes(graph: Path) -> dict[str, list[int | str]]:
    """Read the axes of a graph's inputs: the size of a fixed axis, or the name of a dynamic axis. Skips the weights."""
    import onnx

    inputs = onnx.load(graph, load_external_data=False).graph.input
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inputs
    }


def this_machine() -> str:
    """Describe this machine for the name of an engine: its first NVIDIA GPU, the driver, and the library versions."""
    gpus = printed("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    facts = [gpus.partition("\n")[0].strip()]
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            facts.append(f"{library} {metadata.version(library)}")
    return ", ".join(facts)


def engine_options(
    machine: str,
    graph: str,
    content: str,
    precision: str,
    axes: Mapping[str, Sequence[int | str]],
    shapes: Mapping[str, Shape],
    lane_lengths: tuple[int, int] | None = None,
    options: TensorRTOptions = USUAL,
) -> dict[str, str]:
    """Return the provider options for an engine of a graph, and create the engine's folder in the cache.

    Args:
        machine: Description of the machine from ``this_machine``.
        graph: Name of the graph.
        content: Hash of the package's files.
        precision: Precision of the package.
        axes, shapes, lane_lengths, options: See ``shape_profile``.

    Raises:
        UserError: The cache cannot be written.
    """
    provider = {
        **shape_profile(axes, shapes, lane_lengths, options),
        "trt_fp16_enable": str(int(options.engine_fp16 or precision == "fp16")),
    }
    if options.engine_workspace:
        provider["trt_max_workspace_size"] = str(int(options.engine_workspace * 2**30))
    described = json.dumps([machine, graph, content, precision, provider], sort_keys=True)
    cache = paths.cache_dir() / FOLDER
    folder = cache / hashlib.sha256(described.encode()).hexdigest()[:32]
    with system_errors(f"cannot write {folder}", paths.CACHE_ADVICE):
        folder.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # fails if the folder belongs to another user
        os.utime(folder)  # records that the engine was used now
    return {
        **provider,
        ENGINE_FOLDER: str(folder),
        "trt_engine_cache_enable": "1",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache),
    }
