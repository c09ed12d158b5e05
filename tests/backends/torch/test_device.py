"""Test how the torch backend chooses a device, and how it reports numbers and memory of the device."""

import re
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from ane.backends import load_backend
from ane.backends.torch import device as torch_device
from ane.backends.torch.backend import TorchBackend, choose_precision
from ane.backends.torch.device import ConvolutionPrecision, choose_device, return_freed_memory, torch_memory_errors
from ane.cli import main
from ane.system.errors import UserError
from tests.arrays import noise
from tests.random_model import random_model
from tests.refusals import assert_refused

CUDA = torch.device("cuda")

# errors of torch when CUDA is first used (torch/cuda/__init__.py, c10/cuda/CUDAFunctions.cpp), and our messages
PROBLEMS = {
    "not built": (AssertionError("Torch not compiled with CUDA enabled"), "built without CUDA: install"),
    "old driver": (
        RuntimeError(
            "The NVIDIA driver on your system is too old (found version 11040). Please update your "
            "GPU driver by downloading and installing a new version from the URL: …"
        ),
        "driver is too old for this torch, which is built for CUDA 12.8: update",
    ),
    "no driver": (
        RuntimeError(
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from http://www.nvidia.com/Download/index.aspx"
        ),
        "no NVIDIA driver: if it has an NVIDIA GPU, install",
    ),
    "no GPU": (RuntimeError("No CUDA GPUs are available"), "no NVIDIA GPU (CUDA_VISIBLE_DEVICES is '')"),
    "old GPU": (
        RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with …"),
        "no kernels for this GPU: install",
    ),
    "anything else": (
        RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\nand more"),
        "does not start: Unexpected error from cudaGetDeviceCount()",
    ),
}
WITHOUT_GPU = ("not built", "no driver", "no GPU")


@pytest.fixture
def machine(monkeypatch):
    """``machine(problem, nvidia_smi)`` makes this machine one on which CUDA does not start for that reason."""

    def make(problem: str, nvidia_smi: bool = False) -> None:
        def init() -> None:
            raise PROBLEMS[problem][0]

        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        monkeypatch.setattr(torch_device.shutil, "which", lambda name: f"/usr/bin/{name}" if nvidia_smi else None)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    return make


def test_a_command_on_cuda_that_does_not_start_prints_one_line_with_advice(machine, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    machine("no driver")
    output = tmp_path / "out.wav"
    assert main(["say", "hello", "--backend", "torch:cuda", "-o", str(output)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ane: error: --backend torch:cuda: ")
    assert PROBLEMS["no driver"][1] in line
    assert line.endswith("or use torch:cpu")
    assert not output.exists()


@pytest.mark.parametrize("problem", PROBLEMS)
def test_only_an_nvidia_gpu_that_cannot_be_used_causes_a_notice_and_cuda_by_name_an_error(machine, problem, notices):
    for nvidia_smi in (False, True):
        machine(problem, nvidia_smi)
        for spec in ("auto", "torch"):
            notices.clear()
            assert load_backend(spec, random_model()).device.type == "cpu"
            if problem in WITHOUT_GPU and not nvidia_smi:
                assert notices == []
            else:
                (line,) = notices
                assert line.startswith("using cpu instead of CUDA: ")
                assert PROBLEMS[problem][1] in line
                assert "\n" not in line
    assert_refused(
        re.escape(PROBLEMS[problem][1]) + ".*, or use torch:cpu$", lambda: load_backend("torch:cuda", random_model())
    )


def test_choosing_the_cpu_does_not_start_cuda(monkeypatch):
    def init() -> None:
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "is_available", init)
    assert choose_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda:2", "cuda:x", "cuda:"])
def test_a_gpu_number_that_does_not_exist_is_refused(monkeypatch, name):
    monkeypatch.setattr(torch_device, "cuda_problem", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("auto") == CUDA
    assert_refused(rf"no {name!r} device for torch \(it has 2 of kind cuda, numbered from 0\)", choose_device, name)


@pytest.mark.parametrize("native", [False, True])
def test_bfloat16_needs_a_gpu_that_computes_in_it(monkeypatch, native):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or native)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    for stored in ("fp16", "fp32"):
        assert choose_precision("auto", stored, CUDA).name == stored
        assert choose_precision("fp16", stored, CUDA).dtype == torch.float16
    assert choose_precision("auto", "bf16", CUDA).name == ("bf16" if native else "fp32")
    on_mps = [choose_precision(wanted, "bf16", torch.device("mps")).dtype for wanted in ("auto", "bf16", "fp32")]
    assert on_mps == [torch.float16, torch.bfloat16, torch.float32]
    if native:
        assert choose_precision("bf16", "fp16", CUDA).dtype == torch.bfloat16
    else:
        assert_refused(
            r"precision bf16: Tesla V100 does not .* use fp16 or fp32", choose_precision, "bf16", "fp16", CUDA
        )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_every_out_of_memory_error_of_torch_is_reported(error):
    with pytest.raises(UserError, match="no memory left on the device"), torch_memory_errors():
        raise error


def test_running_out_of_memory_while_a_graph_is_recorded_is_reported_and_other_errors_are_raised_unchanged():
    @contextmanager
    def recording():
        try:
            yield
        finally:  # ending the recording raises a second error
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with pytest.raises(UserError, match="no memory left on the device"), torch_memory_errors(), recording():
        raise torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(RuntimeError, match="illegal memory access"), torch_memory_errors():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


PAGE_FAULTS = """
import ctypes, resource
from ane.backends.torch.device import keep_freed_memory

libc, size = ctypes.CDLL(None), 10 << 20
libc.malloc.restype = ctypes.c_void_p

def pass_through_layers():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [ctypes.c_void_p(libc.malloc(size)) for _ in range(4)]
        for block in blocks:
            ctypes.memset(block, 1, size)
        for block in blocks:
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pass_through_layers()
returned = pass_through_layers()
keep_freed_memory()
pass_through_layers()
print(returned, pass_through_layers())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc: run it on Linux")
def test_memory_that_a_layer_freed_is_there_for_the_next_one(python):
    """Without page faults, in each of which the system clears a page; by itself glibc has 10,000 for every 40 MB."""
    returned, kept = map(int, subprocess.check_output([python, "-c", PAGE_FAULTS]).split())
    assert kept < 10_000 <= returned


@pytest.mark.parametrize(("version", "on_cpu"), [("14.7.1", True), ("15.0", True), ("15.1", False), ("26.0", False)])
def test_mps_before_macos_15_1_leaves_long_rows_to_the_cpu(monkeypatch, version, on_cpu):
    """It refuses convolutions with an axis above 65,536, which a vocoder has from 2.73 s of sound on."""
    monkeypatch.setattr("ane.system.machine.macos_version", lambda: version)
    assert torch_device.refuses_long_rows(torch.device("mps")) == on_cpu
    assert not torch_device.refuses_long_rows(torch.device("cpu"))


def test_the_vocoder_moves_to_the_cpu_and_the_decoder_stays(monkeypatch):
    monkeypatch.setattr("ane.backends.torch.backend.refuses_long_rows", lambda device: True)
    backend = load_backend("torch:cpu", random_model())
    backend.device = torch.device("meta")  # the device "meta" stands for MPS
    assert backend.device_of("univnet") == torch.device("cpu")
    assert backend.device_of("hifigan") == torch.device("cpu")
    assert backend.device_of("autoregressive") == torch.device("meta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"cache": "host"}, "cache must be one of auto, io, state, got 'host'"),
        ({"lanes": 2}, "lanes is unknown"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    assert_refused(message, lambda: load_backend("torch:cpu", random_model(), **options))


CUDNN = torch.backends.cudnn


@pytest.fixture(autouse=True)
def setting():
    """torch's default, TF32, before and after each test."""
    CUDNN.allow_tf32 = True
    yield
    torch.backends.fp32_precision = "none"
    CUDNN.allow_tf32 = True


@pytest.fixture(scope="module")
def backend(golden_model) -> TorchBackend:
    return TorchBackend(golden_model, "cpu", "fp32", keep=True)


def precisions_inside(backend: TorchBackend, network: str) -> list[str]:
    """The precision of convolutions that each convolution of the network runs with, filled by later calls."""
    seen: list[str] = []
    for module in backend.network(network).modules():
        if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
            module.register_forward_pre_hook(lambda *_: seen.append(CUDNN.conv.fp32_precision))
    return seen


def denoise(backend: TorchBackend) -> None:
    latents, voice = (noise(1, *size) for size in ((4, backend.model.widths[0]), (backend.model.widths[1],)))
    backend.denoiser([latents], voice, [18])([noise(1, 100, 18)], 12, True)


@pytest.mark.parametrize(
    ("network", "call"),
    [
        ("univnet", lambda backend: backend.run("univnet", mel=noise(1, 100, 12), noise=noise(1, 64, 22))),
        ("conditioning_encoder", lambda backend: backend.run("ar_conditioning", mel=noise(1, 80, 40))),
        ("contextual_embedder", lambda backend: backend.run("diffusion_conditioning", mel=noise(1, 100, 40))),
        ("diffusion", denoise),
    ],
)
def test_vocoders_encoders_and_the_denoiser_run_without_tf32(backend, network, call):
    seen = precisions_inside(backend, network)
    call(backend)
    assert set(seen) == {"ieee"}
    assert CUDNN.allow_tf32


@pytest.mark.parametrize("name", ["tf32", "ieee"])
def test_a_program_that_uses_torch_s_newer_setting_keeps_it(backend, name):
    """``torch.backends.cudnn.flags`` raises an error here."""
    torch.backends.fp32_precision = name
    before = CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision
    seen = precisions_inside(backend, "univnet")
    backend.run("univnet", mel=noise(1, 100, 12), noise=noise(1, 64, 22))
    assert set(seen) == {"ieee"}
    assert (CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision) == before


def test_a_call_that_fails_restores_the_setting():
    with pytest.raises(RuntimeError, match="failed"), ConvolutionPrecision().full():
        raise RuntimeError("failed")
    assert CUDNN.allow_tf32


def test_calls_of_several_threads_restore_the_setting_after_the_last():
    convolutions, first_inside, second_done = ConvolutionPrecision(), threading.Event(), threading.Event()
    seen: list[str] = []

    def first() -> None:
        with convolutions.full():
            first_inside.set()
            second_done.wait(10)
            seen.append(CUDNN.conv.fp32_precision)

    thread = threading.Thread(target=first)
    thread.start()
    first_inside.wait(10)
    with convolutions.full():
        pass
    second_done.set()
    thread.join()
    assert seen == ["ieee"]
    assert CUDNN.allow_tf32


@pytest.mark.parametrize("before", [True, False])
def test_torch_before_2_9_has_one_setting(monkeypatch, before):
    older = SimpleNamespace(allow_tf32=before)
    monkeypatch.setattr(torch.backends, "cudnn", older)
    with ConvolutionPrecision().full():
        assert older.allow_tf32 is False
    assert older.allow_tf32 is before


def test_freed_memory_of_a_gpu_is_returned(monkeypatch):
    given = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("cuda"))
    return_freed_memory(torch.device("cpu"))
    assert given == []
    return_freed_memory(CUDA)
    assert given == ["cuda"]
