"""Where torch computes: what a machine lacks is told in one line, with what to do."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from ane.backends import load_backend
from ane.backends.torch import device as torch_device
from ane.backends.torch.backend import choose_precision
from ane.backends.torch.device import choose_device
from ane.backends.torch.memory import torch_memory_errors, return_freed_memory
from ane.cli import main
from ane.system.errors import UserError
from tests.random_model import RandomModel

CUDA = torch.device("cuda")

# what torch raises when CUDA is first used (torch/cuda/__init__.py, c10/cuda/CUDAFunctions.cpp) → what the user reads
TROUBLES = {
    "not built": (AssertionError("Torch not compiled with CUDA enabled"), "built without CUDA: install"),
    "old driver": (RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update your "
                                "GPU driver by downloading and installing a new version from the URL: …"),
                   "driver is too old for this torch, which is built for CUDA 12.8: update"),
    "no driver": (RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
                               "installed a driver from http://www.nvidia.com/Download/index.aspx"),
                  "no NVIDIA driver: install"),
    "no GPU": (RuntimeError("No CUDA GPUs are available"), "no NVIDIA GPU (CUDA_VISIBLE_DEVICES is '')"),
    "old GPU": (RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with …"),
                "nothing compiled for this GPU: install"),
    "anything else": (RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n"
                                   "and more"), "does not start: Unexpected error from cudaGetDeviceCount()"),
}
NOTHING_MISSED = ("not built", "no driver", "no GPU")


@pytest.fixture
def machine(monkeypatch):
    """``machine(trouble, nvidia_smi)``: a machine on which CUDA does not start for that reason."""
    def made(trouble: str, nvidia_smi: bool = False) -> None:
        def init() -> None:
            raise TROUBLES[trouble][0]

        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        monkeypatch.setattr(torch_device.shutil, "which", lambda name: f"/usr/bin/{name}" if nvidia_smi else None)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    return made


@pytest.mark.parametrize("trouble", TROUBLES)
def test_cuda_that_does_not_start_is_one_line_with_what_to_do(machine, capsys, tmp_path, monkeypatch, trouble):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    machine(trouble)
    output = tmp_path / "out.wav"
    assert main(["say", "hello", "--backend", "torch:cuda", "-o", str(output)]) == 1
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith("ane: error: --backend torch:cuda: ")
    assert TROUBLES[trouble][1] in line
    assert line.endswith("or use torch:cpu")
    assert not output.exists()


@pytest.mark.parametrize("nvidia_smi", [False, True])
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("spec", ["auto", "torch"])
def test_a_gpu_that_cannot_be_used_is_missed_aloud_and_one_that_is_not_there_is_not(machine, tmp_path, monkeypatch,
                                                                                   spec, trouble, nvidia_smi):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    machine(trouble, nvidia_smi)
    told: list[str] = []
    backend = load_backend(spec, RandomModel(), notice=told.append)
    assert backend.device.type == "cpu"
    if trouble in NOTHING_MISSED and not nvidia_smi:
        assert told == []
    else:
        line, = told
        assert line.startswith("not on CUDA but on cpu: ")
        assert TROUBLES[trouble][1] in line
        assert "\n" not in line


def test_the_cpu_is_taken_without_a_look_at_cuda(monkeypatch):
    def init() -> None:
        raise AssertionError("nobody asked for CUDA")

    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "is_available", init)
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda:2", "cuda:x", "cuda:"])
def test_a_gpu_of_a_number_that_there_is_not(monkeypatch, name):
    monkeypatch.setattr(torch_device, "cuda_problem", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("auto") == CUDA
    with pytest.raises(UserError, match=f"no {name} device for torch; of kind cuda there are 2, numbered from 0"):
        choose_device(name)


@pytest.mark.parametrize("native", [False, True])
def test_bfloat16_is_for_cards_that_compute_in_it(monkeypatch, native):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or native)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    for stored in ("fp16", "fp32"):
        assert choose_precision("auto", stored, CUDA).name == stored
        assert choose_precision("fp16", stored, CUDA).dtype == torch.float16
    assert choose_precision("auto", "bf16", CUDA).name == ("bf16" if native else "fp32")
    if native:
        assert choose_precision("bf16", "fp16", CUDA).dtype == torch.bfloat16
    else:
        with pytest.raises(UserError, match=r"--precision bf16: Tesla V100 does not .* use fp16 or fp32"):
            choose_precision("bf16", "fp16", CUDA)


@pytest.mark.parametrize("error", [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), MemoryError(),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")])
def test_memory_that_runs_out_is_told_however_torch_puts_it(error):
    with pytest.raises(UserError, match="no memory left on the device"), torch_memory_errors():
        raise error


def test_memory_that_runs_out_while_a_graph_is_recorded_is_told_too():
    """The end of the recording raises an error of its own, over the first."""
    @contextmanager
    def recording():
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with pytest.raises(UserError, match="no memory left on the device"), torch_memory_errors(), recording():
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_any_other_error_stays_a_bug():
    with pytest.raises(RuntimeError, match="illegal memory access"), torch_memory_errors():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_freed_memory_of_a_gpu_is_given_back_to_it(monkeypatch):
    given = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("cuda"))
    return_freed_memory(torch.device("cpu"))
    assert given == []
    return_freed_memory(CUDA)
    assert given == ["cuda"]
