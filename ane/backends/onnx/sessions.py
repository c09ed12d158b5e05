"""Sessions of ONNX Runtime, loaded when first used, calls of them on torch's tensors, and TensorRT's engines on disk.

ONNX Runtime is given the tensors' addresses, so a contiguous part of a cache is an input without a copy, and on a GPU
nothing of a cache is moved to the host.

ONNX Runtime's TensorRT provider builds an engine for the shapes of a profile when a session is first run, which takes
minutes at official size, and caches it on disk. All graphs have dynamic axes, so an engine takes every length of its
bucket without padding. The name of an engine's folder is a hash of everything that it depends on (model, profile,
precision, GPU, library versions), so an outdated engine is never loaded. ``pytest tests/cuda`` runs TensorRT itself, on
an NVIDIA GPU.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ane.backends.onnx.providers import CPU, CUDA, OnnxDevice, make_session, onnx_errors
from ane.system import paths
from ane.system.errors import UserError
from ane.system.machine import printed

PROVIDER_OPTIONS = {CUDA: {"use_tf32": "0"}}    # ONNX Runtime's default computes float32 with a 10-bit mantissa
NUMPY_DTYPES = {torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64}


@dataclass(frozen=True)
class SessionKey:
    """Identifies a session: the path of a graph, and options of the provider as (name, value) pairs (for TensorRT the
    shapes that its engine takes)."""

    path: Path
    options: tuple[tuple[str, str], ...] = ()


class SessionCache:
    """Loads sessions by ``load`` and caches them, each with the bindings of the calls that use it."""

    def __init__(self, load: Callable[[SessionKey], Any]):
        self._load = load
        self._loaded: dict[SessionKey, tuple[Any, WeakKeyDictionary[BoundCall, Any]]] = {}

    def get(self, key: SessionKey) -> Any:
        """The session, loaded if it is not. Raises UserError when it cannot be loaded."""
        if key not in self._loaded:
            self._loaded[key] = self._load(key), WeakKeyDictionary()
        return self._loaded[key][0]

    def binding(self, call: "BoundCall") -> Any:
        """The binding of a call, made once for each time that its session is loaded."""
        session, bindings = self.get(call.key), self._loaded[call.key][1]
        if call not in bindings:
            bindings[call] = call.bound(session)
        return bindings[call]

    def unload(self, folder: Path | None = None) -> None:
        """Unload the sessions of the package in ``folder``, or all."""
        for key in list(self._loaded):
            if folder in (None, key.path.parent):
                del self._loaded[key]


class BoundCall:
    """A call of a graph with tensors of fixed shapes and addresses.

    It holds no reference to the session, so that an unloaded session is really freed. ``run`` loads it again.
    """

    def __init__(self, sessions: SessionCache, key: SessionKey, inputs: Mapping[str, Tensor],
                 outputs: Mapping[str, Tensor]):
        self.sessions, self.key, self.inputs, self.outputs = sessions, key, inputs, outputs

    def run(self, action: str, **inputs: np.ndarray) -> None:
        """Copy the given inputs into their tensors and run the graph. Other inputs keep their values.

        Raises:
            UserError: ONNX Runtime fails; ``action`` completes "ONNX Runtime cannot …".
        """
        for name, array in inputs.items():
            self.inputs[name].copy_(torch.from_numpy(np.require(array, requirements=("C", "W"))))
        session = self.sessions.get(self.key)
        with onnx_errors(action):
            binding = self.sessions.binding(self)
            if next(iter(self.inputs.values())).is_cuda:
                torch.cuda.synchronize()            # ONNX Runtime computes on another stream than torch writes on
            session.run_with_iobinding(binding)

    def bound(self, session: Any) -> Any:
        binding = session.io_binding()
        for bind, tensors in ((binding.bind_input, self.inputs), (binding.bind_output, self.outputs)):
            for name, tensor in tensors.items():
                bind(name, tensor.device.type, 0, NUMPY_DTYPES[tensor.dtype], list(tensor.shape), tensor.data_ptr())
        return binding

    def output(self, name: str) -> np.ndarray:
        """A copy on the host."""
        return self.outputs[name].cpu().numpy().copy()


def zeros(device: OnnxDevice, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor in the memory of a device. Raises UserError when memory does not suffice."""
    with onnx_errors("allocate a buffer"):
        return torch.zeros(shape, dtype=dtype, device=device.memory)


def session_loader(device: OnnxDevice, threads: int | None = None) -> Callable[[SessionKey], Any]:
    """A function that loads sessions on a device; UserError where ONNX Runtime would fall back to the CPU."""
    def load(key: SessionKey) -> Any:
        own = {**PROVIDER_OPTIONS.get(device.provider, {}), **dict(key.options)}
        providers = [(device.provider, own)] if own else [device.provider]
        if device.name == "tensorrt":
            providers.append((CUDA, PROVIDER_OPTIONS[CUDA]))    # for operations that TensorRT lacks
        if device.provider != CPU:
            providers.append(CPU)                               # for operations on shapes
        with onnx_errors(f"load {key.path} on {device.short_name}"):
            session = make_session(key.path, providers, threads)
        if device.provider not in session.get_providers():
            raise UserError(f"the provider {device.short_name} did not load for {key.path.name}, and ONNX Runtime "
                            f"would compute on the CPU instead; it needs {device.requirements}. Or use "
                            "backend=onnx:cpu")
        return session

    return load


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
                  lane_lengths: tuple[int, int] | None = None) -> dict[str, str]:
    """The options of an engine that takes inputs of these shapes; it is optimised for the largest.

    Args:
        axes: of each input: the sizes of fixed axes, the names of dynamic ones. The name "frames_and_10" means ten more
            than "frames".
        lane_lengths: of a decoder's step, the first and last size of the axis "length"; "seen" is longer by the prefix
            and the new columns; the others have exactly these sizes. None: all have their buckets.

    Returns:
        Of each end of the range the shapes as ONNX Runtime's provider takes them: "mel:1x80x64,noise:1x64x74".
    """
    ranges: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        for axis, size in zip(axes[name], shape, strict=True):
            if isinstance(axis, str) and "_and_" not in axis:
                edges = BATCHES if axis in COUNT_AXES else LENGTHS
                ranges[axis] = (size, size) if lane_lengths else bucket_range(size, edges)
    if lane_lengths:
        others = ranges["seen"][0] - ranges["length"][0]
        ranges |= {"length": lane_lengths, "seen": (others + lane_lengths[0], others + lane_lengths[1])}

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
                   shapes: Mapping[str, Shape], lane_lengths: tuple[int, int] | None = None) -> dict[str, str]:
    """The provider's options for an engine of a graph.

    Args:
        machine: as ``this_machine`` describes it. graph: its name. content: hash of its files.
        axes, shapes, lane_lengths: as ``shape_profile`` takes them.

    Raises:
        UserError: the cache cannot be written.
    """
    profile = shape_profile(axes, shapes, lane_lengths)
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
