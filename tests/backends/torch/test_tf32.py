"""Convolutions of networks on CUDA are full float32; the program's own setting is not changed. No GPU is needed."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.device import ConvolutionPrecision
from ane.bundles import open_model

CUDNN = torch.backends.cudnn


@pytest.fixture(autouse=True)
def setting():
    """torch's default, TF32, before and after each test."""
    CUDNN.allow_tf32 = True
    yield
    torch.backends.fp32_precision = "none"
    CUDNN.allow_tf32 = True


@pytest.fixture(scope="module")
def backend(golden_checkpoints, golden_config) -> TorchBackend:
    return TorchBackend(open_model(checkpoints=golden_checkpoints, config=golden_config), "cpu", "fp32", keep=True)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def precisions_inside(backend: TorchBackend, network: str) -> list[str]:
    """The precision of convolutions that each convolution of the network runs with, filled by later calls."""
    seen: list[str] = []
    for module in backend.network(network).modules():
        if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
            module.register_forward_pre_hook(lambda *_: seen.append(CUDNN.conv.fp32_precision))
    return seen


@pytest.mark.parametrize(("stage", "network", "inputs"), [
    ("univnet", "univnet", {"mel": (1, 100, 12), "noise": (1, 64, 22)}),
    ("ar_conditioning", "conditioning_encoder", {"mel": (1, 80, 40)}),
    ("diffusion_conditioning", "contextual_embedder", {"mel": (1, 100, 40)})])
def test_vocoders_and_encoders_run_without_tf32(backend, stage, network, inputs):
    seen = precisions_inside(backend, network)
    backend.run(stage, **{name: noise(*shape) for name, shape in inputs.items()})
    assert set(seen) == {"ieee"}
    assert CUDNN.allow_tf32


def test_the_denoiser_runs_without_tf32(backend):
    seen = precisions_inside(backend, "diffusion")
    latents, voice = (noise(1, *size) for size in ((4, backend.model.widths[0]), (backend.model.widths[1],)))
    backend.denoiser([latents], voice, [18])([noise(1, 100, 18)], 12, True)
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
