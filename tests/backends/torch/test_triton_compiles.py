"""Triton compiles the kernels for NVIDIA GPUs, without one, and they fit into the shared memory of the smaller ones."""

from typing import Any

import pytest
import torch
from torch import nn

from ane.models.tortoise.networks.autoregressive import Conv1D

# of a block, for compute capability 8.6 and 8.9; 8.0 and 9.0 have more (CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability")
SHARED_MEMORY = 99 * 1024
TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64"}
HALVES_AND_FLOAT = [torch.float32, torch.float16, torch.bfloat16]


class CompiledKernel:
    """Compiles a kernel for compute capability 8.0 instead of launching it."""

    def __init__(self, kernel: Any):
        self.kernel, self.shared = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *arguments: Any, num_warps: int, num_stages: int = 3, **constants: Any) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = self.kernel.arg_names
        given = dict(zip(names, arguments, strict=False))
        constants |= {name: None for name, value in given.items() if value is None}
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        signature = ({name: "fp32" if isinstance(value, float) else "i32" for name, value in given.items()}
                     | {name: f"*{TYPES[tensor.dtype]}" for name, tensor in tensors.items()}
                     | dict.fromkeys(constants, "constexpr"))
        aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in tensors}     # as torch's tensors are
        source = ASTSource(self.kernel, {name: signature[name] for name in names},
                           {(names.index(name),): value for name, value in constants.items()}, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32),
                                  options={"num_warps": num_warps, "num_stages": num_stages})
        self.shared = compiled.metadata.shared


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """``triton_kernels``, whose kernels are compiled and not launched."""
    pytest.importorskip("triton", reason="Triton has packages for Linux: pip install -e '.[test]'")
    from ane.backends.torch import triton_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name in ("linear_kernel", "attention_kernel"):
        monkeypatch.setattr(triton_kernels, name, CompiledKernel(getattr(triton_kernels, name)))
    return triton_kernels


@pytest.mark.parametrize("lanes", [1, 64])
@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
def test_linear_layers_of_the_official_size_compile(kernels, dtype, lanes):
    with torch.device("meta"):
        x, wide = torch.empty(lanes, 1024), torch.empty(lanes, 4096, dtype=dtype)
        kernels.linear(x, Conv1D(1024, 4096).to(dtype), nn.LayerNorm(1024), gelu=True)
        assert 0 < kernels.linear_kernel.shared <= SHARED_MEMORY
        kernels.linear(wide, Conv1D(4096, 1024).to(dtype), residual=x)
        assert 0 < kernels.linear_kernel.shared <= SHARED_MEMORY


@pytest.mark.parametrize("dtype", HALVES_AND_FLOAT)
def test_attention_of_the_official_size_compiles(kernels, dtype):
    with torch.device("meta"):
        own, prefixes = torch.empty(2, 3, 16, 605, 64, dtype=dtype), torch.empty(2, 1, 16, 400, 64, dtype=dtype)
        indices = torch.empty(3, dtype=torch.int64)
        kernels.attend(torch.empty(3, 3072, dtype=dtype), *own, *prefixes, indices, indices, indices, 604)
    assert 0 < kernels.attention_kernel.shared <= SHARED_MEMORY
