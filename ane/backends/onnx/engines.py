"""Describe TensorRT's engines: how they are built, which lengths each takes, and where they are cached.

When a session first runs, ONNX Runtime's TensorRT provider builds an engine for the shapes of a profile, which takes
minutes at the official size. It caches the engine on disk. All graphs have dynamic axes, so an engine takes every
length of its bucket without padding. The name of an engine's folder is a hash of everything that the engine depends on,
which is the model, profile, precision, GPU and library versions. So an outdated engine is never loaded.
``pytest tests/cuda`` runs TensorRT itself, on an NVIDIA GPU.
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
from ane.system.errors import UserError
from ane.system.machine import printed

FOLDER, ENGINE_FOLDER = "engines", "trt_engine_cache_path"  # folder of the cache, and the option for an engine's folder
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
COUNT_AXES = frozenset({"batch", "lanes", "prefixes"})  # axes with the buckets ``BATCHES``; others have ``LENGTHS``
LIBRARIES = ("onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-cu12", "tensorrt-cu13")

Shape = tuple[int, ...]
End = Annotated[int, Field(ge=1)]


@validated
class TensorRTOptions:
    """Options to build engines, for the backend onnx:tensorrt.

    Attributes:
        engine_batch: Number of items in a call that engines are built for. An engine takes fewer, too. By default,
            ranges of items end at ``BATCHES``.
        engine_symbols: Number of symbols at which each range ends. Each range has an engine, and a call takes the
            smallest engine that fits. A call may have at most as many symbols as the last number. By default, ranges
            end at ``LENGTHS``.
        engine_frames: Number of mel frames at which each range ends, as in ``engine_symbols``.
        engine_fp16: Whether graphs in float32 also compute in fp16 if that is faster.
        engine_workspace: GB that the search for the fastest kernels may use. By default, all that the GPU has.
        rebuild_engines: Whether to build each engine again, although it is cached.
    """

    engine_batch: int | None = Field(None, ge=1)
    engine_symbols: tuple[End, ...] = ()
    engine_frames: tuple[End, ...] = ()
    engine_fp16: bool = False
    engine_workspace: float | None = Field(None, gt=0)
    rebuild_engines: bool = False

    def edges(self, axis: str) -> tuple[int, ...]:
        """Return where the ranges of an axis end, in order."""
        ends = {
            "batch": (self.engine_batch,) if self.engine_batch else (),
            "symbols": self.engine_symbols,
            "frames": self.engine_frames,
        }.get(axis)
        return tuple(sorted(set(ends))) if ends else BATCHES if axis in COUNT_AXES else LENGTHS


USUAL = TensorRTOptions()


def bucket_range(size: int, edges: Sequence[int]) -> tuple[int, int]:
    """Return the first and last of the sizes that share a bucket with ``size``.

    A bucket ends at each edge. Beyond the last edge, one ends at each multiple of it.
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
    """Return the options of an engine that takes inputs of these shapes. It is optimised for the largest sizes.

    Args:
        axes: Axes of each input: the size of a fixed axis, or the name of a dynamic one. The name "frames_and_10" means
            ten more than "frames".
        shapes: Shape of each input.
        lane_lengths: First and last size of the axis "length" in a decoder's step. The axis "seen" is longer by the
            prefix and the new columns, and the other axes have exactly these sizes. ``None`` means that all axes have
            buckets.
        options: Options that set the buckets.

    Returns:
        The shapes at each end of the range, as ONNX Runtime's provider takes them: "mel:1x80x64,noise:1x64x74".
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
    """Return the axes of a graph's inputs: sizes, or names of dynamic axes. It does not read the weights."""
    import onnx

    inputs = onnx.load(graph, load_external_data=False).graph.input
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in inputs
    }


def this_machine() -> str:
    """Describe the machine that an engine is built for: the first NVIDIA GPU with its driver, and library versions."""
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
    """Return the provider's options for an engine of a graph.

    Args:
        machine: Description from ``this_machine``.
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write {folder}: {error.strerror or error}: set ANE_HOME to a folder that can be written"
        ) from error
    with suppress(OSError):  # the cache may belong to another user
        os.utime(folder)  # marks the last use
    return {
        **provider,
        ENGINE_FOLDER: str(folder),
        "trt_engine_cache_enable": "1",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache),
    }
