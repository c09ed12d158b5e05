"""Provide bundles with ONNX packages, and a fake of CUDA graphs on the CPU, for the tests of several engines."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ane.backends.torch.static_decoder import CudaGraphRunner
from ane.bundles.bundle import Bundle
from tests.onnx_packages import OnnxPackages


class FakeCudaGraph(TorchDispatchMode):
    """A CUDA graph on the CPU: recorded operations, each bound to the memory that it read and wrote when recorded.

    Numbers from the host are recorded too. So a function that reads values of buffers, or makes its masks on the host,
    replays wrongly. This class replaces ``torch.cuda.CUDAGraph`` and ``torch.cuda.graph``. As with those, what was
    written while it recorded has not happened: memory is as before.
    """

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[Callable, tuple, dict, Any]] = []
        self.replays = 0
        # address → memory, copy of the memory
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        for storage, copy in self.before.values():
            storage.copy_(copy)
        self.before.clear()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host waits for a value"
        for leaf in tree_leaves((args, kwargs)) if func._schema.is_mutable else ():
            if isinstance(leaf, torch.Tensor):
                self.before.setdefault(memory(leaf), (leaf.untyped_storage(), leaf.untyped_storage().clone()))
        out = func(*args, **kwargs)
        read = {memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if func._schema.is_mutable:
            self.calls.append((func, args, kwargs, None))
        elif memory(tree_leaves(out)[0]) not in read:  # other outputs are views of memory that stays in place
            self.calls.append((func, args, kwargs, out))
        return out

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            if out is not None:
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    old.copy_(new)


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class FakeStream:
    """Replaces ``torch.cuda.Stream``; it does nothing."""

    def __init__(self, device: torch.device):
        self.device = device

    def wait_stream(self, other: "FakeStream") -> None:
        assert isinstance(other, FakeStream)


@pytest.fixture(scope="module")
def fake_graphs() -> Iterator[Callable[[], CudaGraphRunner]]:
    """``fake_graphs()``: a ``CudaGraphRunner`` on the CPU, with ``FakeCudaGraph`` in place of torch.cuda."""
    signature = inspect.signature(torch.cuda.graph)

    def graph(*args, **kwargs) -> FakeCudaGraph:
        return signature.bind(*args, **kwargs).arguments["cuda_graph"]

    with pytest.MonkeyPatch.context() as patch:
        for name, fake in {
            "CUDAGraph": FakeCudaGraph,
            "graph": graph,
            "Stream": FakeStream,
            "stream": nullcontext,
            "current_stream": FakeStream,
            "device": nullcontext,
            "graph_pool_handle": object,
        }.items():
            patch.setattr(torch.cuda, name, fake)
        yield lambda: CudaGraphRunner(FakeStream(torch.device("cpu")))


@pytest.fixture(scope="session")
def bundle(onnx_packages: OnnxPackages) -> Bundle:
    """The tiny bundle with ONNX packages of every network, shared by all workers of a run."""
    return onnx_packages.bundle()


@pytest.fixture(scope="session")
def decoder_bundle(onnx_packages: OnnxPackages) -> Bundle:
    """The same with packages of the decoder alone."""
    return onnx_packages.bundle("autoregressive")
