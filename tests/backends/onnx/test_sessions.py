"""Test networks on ONNX Runtime against torch, the cache of sessions, and what is rejected. This needs no GPU."""

import copy
import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ane.backends import load_backend
from ane.backends.onnx import providers
from ane.backends.onnx import providers as providers_module
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.decoder import GROWTH
from ane.backends.onnx.providers import CPU, DEVICES, IDENTITY, OnnxDevice
from ane.backends.onnx.sessions import SessionCache, SessionKey, session_loader
from ane.backends.packaged.selection import select_packages
from ane.bundles.bundle import Bundle
from ane.bundles.package_records import PackageFolder
from ane.bundles.precisions import ONNX, stored_precision
from ane.cli import main
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from converters.proof.parity import mean_snr_db
from tests.arrays import assert_equal
from tests.backends import decoder_steps
from tests.backends.decoder_steps import answers, assert_near, turns
from tests.refusals import assert_refused

TENSORRT = OnnxDevice("tensorrt", CPU, "cpu", "nothing")


class LoadedOnTheCpu:
    """Loads graphs on the CPU, without the provider's options; notes the keys, and which sessions still exist."""

    def __init__(self):
        self.keys: list[SessionKey] = []
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._load = session_loader(DEVICES["cpu"], 1)

    def __call__(self, key: SessionKey) -> Any:
        self.keys.append(key)
        session = self._load(SessionKey(key.path))
        self.alive.add(session)
        return session


def run_decoder(decoder: Any, prefix: int = 6) -> list[np.ndarray]:
    return answers(decoder, turns(prefix, 2, 3, 32))


def test_a_package_s_sessions_are_unloaded_alone():
    loaded: list[str] = []
    cache = SessionCache(lambda key: loaded.append(key.path.name))
    keys = [SessionKey(Path(path)) for path in ("folder/a", "folder/b", "other/c")]
    for each in (*keys, *keys):
        cache.get(each)
    cache.unload(Path("folder"))
    for each in keys:
        cache.get(each)
    assert loaded == ["a", "b", "c", "a", "b"]


def test_threads_wait_for_a_session_until_another_one_is_worth_loading():
    made: list[object] = []

    def load(key: SessionKey) -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    cache, key, used = SessionCache(load), SessionKey(Path("graph")), []

    def work() -> None:
        for _ in range(20):
            with cache.of(key).lend() as session:
                assert session not in used, "two threads have the same session"
                used.append(session)
                time.sleep(0.01)
                used.remove(session)

    work()
    assert len(made) == 1
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work) for _ in range(2)]:
            done.result()
    assert len(made) == 2
    cache.unload()
    cache.get(key)
    assert len(made) == 3


def test_an_unloaded_session_is_freed_although_its_decoder_is_referenced(decoder_bundle):
    load = LoadedOnTheCpu()
    backend = OnnxBackend(decoder_bundle, DEVICES["cpu"], load_backend("torch:cpu", decoder_bundle), "fp32", load=load)
    decoder = backend.decoder(2, 8)
    before = run_decoder(decoder)
    backend.sessions.unload()
    gc.collect()
    assert len(load.alive) == 0
    assert_equal(before, run_decoder(decoder))


def test_prefixes_of_a_bucket_share_tensorrt_s_engine_of_steps(decoder_bundle: Bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    load, on_torch = LoadedOnTheCpu(), load_backend("torch:cpu", decoder_bundle, "fp32", threads=1, keep=True)
    backend = OnnxBackend(decoder_bundle, TENSORRT, on_torch, "fp32", load=load, machine="some GPU")
    for length in (6, 40, 64, 9):
        decoder = backend.decoder(2, 8)
        for prefix in (length, 5):
            assert mean_snr_db(run_decoder(on_torch.decoder(2, 8), prefix), run_decoder(decoder, prefix)) >= 100
    assert sum(each.path.stem == "step" for each in load.keys) == 1
    assert run_decoder(backend.decoder(2, 8), prefix=65)
    assert sum(each.path.stem == "step" for each in load.keys) == 2


@pytest.mark.parametrize(("name", "own"), [("cuda", {"device_id": "0"}), ("tensorrt", {})])
def test_float32_on_a_gpu_is_not_reduced_to_tf32(monkeypatch, name, own):
    asked: list[Any] = []

    def session(path: str, options: Any, providers: list[Any], enable_fallback: int) -> Any:
        assert not enable_fallback
        asked.extend(providers)
        return SimpleNamespace(get_providers=lambda: [DEVICES[name].provider])

    monkeypatch.setattr(providers_module.onnxruntime_module(), "InferenceSession", session)
    session_loader(DEVICES[name])(SessionKey(Path("step.onnx"), tuple(own.items())))
    assert ("CUDAExecutionProvider", {"use_tf32": "0", **own}) in asked


def test_a_provider_that_onnx_runtime_leaves_out_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "copy.onnx").write_bytes(IDENTITY)
    absent = OnnxDevice("dml", "DmlExecutionProvider", "cpu", "Windows")  # no wheel for Linux or macOS has it
    assert_refused(
        r"Dml did not load for copy\.onnx, .*: set up Windows, or use backend=onnx:cpu$",
        lambda: session_loader(absent)(SessionKey(tmp_path / "copy.onnx")),
    )


FP32_SNR = 100  # dB that float32 reaches if only the order of sums differs
columns = partial(decoder_steps.columns, width=32)


@pytest.fixture(scope="module")
def on_torch(decoder_bundle):
    return load_backend("torch:cpu", decoder_bundle, "fp32", threads=1, keep=True)


@pytest.fixture(scope="module")
def onnx(decoder_bundle):
    return load_backend("onnx:cpu", decoder_bundle, "fp32", threads=1, keep=True)


def test_a_cache_that_grows_keeps_its_content(on_torch, onnx):
    both, first = (on_torch.decoder(2, 3 * GROWTH), onnx.decoder(2, 3 * GROWTH)), np.zeros(2, dtype=np.int64)
    steps = [(columns(turn, 2, 1), first + GROWTH - 2 + turn) for turn in range(4)]  # these leave the first bucket
    calls = [(columns(0, 6),), (columns(1, 2, GROWTH - 2), first), *steps]
    assert_near(*(answers(decoder, calls) for decoder in both), FP32_SNR)
    assert both[1].lane_caches[0].shape[3] == 2 * GROWTH
    last = columns(7, 2, GROWTH), first + GROWTH + 2
    assert_near(*(decoder.step(*last) for decoder in both), FP32_SNR)


@pytest.mark.parametrize(("precision", "threshold"), [("fp16", 50), ("int8", 25), ("int4", 9)])
def test_quantised_decoders_reach_their_threshold(on_torch, decoder_bundle, precision, threshold):
    (package,) = (
        both for both in decoder_bundle.onnx_packages if (both.network, both.precision) == ("autoregressive", precision)
    )
    assert min(function.parity["cpu"] for function in package.functions.values()) >= threshold
    backend = OnnxBackend(
        decoder_bundle, DEVICES["cpu"], on_torch, threads=1, unpublished=PackageFolder(decoder_bundle.path, [package])
    )
    calls = [(x / 20, *rest) for x, *rest in turns(12, 2, 3, 32)]
    expected, actual = (answers(each.decoder(2, 8), calls) for each in (on_torch, backend))
    for start in range(0, len(expected), 2):  # the arrays of a call
        assert mean_snr_db(expected[start : start + 2], actual[start : start + 2]) >= threshold


def test_a_step_before_any_prefill_is_refused(onnx):
    with pytest.raises(ValueError, match="step needs a prefix"):
        onnx.decoder(2, 4).step(columns(1, 1, 1), np.zeros(1, dtype=np.int64))


# Largest errors, as a share of the largest value.
LARGEST_ERROR = 1e-4
# The unconditioned prediction hardly varies along frames, and norms amplify the rest. With random weights, ONNX Runtime
# differs from float64 by up to 3e-3 (333 frames), and torch by up to 8e-2 when it computes both rows at once. So the
# unconditioned row is compared with float64. With the embedded voice's weights, the two differ by at most 7e-6.
UNCONDITIONED_ERROR = 5e-3


@pytest.fixture(scope="module")
def backends(bundle):
    return [load_backend(name, bundle, "fp32", threads=1, keep=True) for name in ("torch:cpu", "onnx:cpu")]


def error(expected: np.ndarray, actual: np.ndarray) -> float:
    assert (actual.shape, actual.dtype) == (expected.shape, np.float32)
    return float(np.abs(expected - actual).max() / np.abs(expected).max())


def exact(backend, x: np.ndarray, timestep: int) -> np.ndarray:
    """The unconditioned prediction in float64: (200, L)."""
    network = copy.deepcopy(backend.network("diffusion")).double()
    with torch.no_grad():
        prediction = network(torch.tensor(x).double(), torch.tensor([timestep]), network.unconditioned(x.shape[-1]))
    return prediction.float().numpy()[0]


@pytest.mark.parametrize(("latents", "frames"), [(4, 17), (30, 130), (64, 280)])
@pytest.mark.parametrize("guided", [False, True])
def test_the_denoiser_returns_what_torch_returns(bundle, backends, latents, frames, guided):
    rng = np.random.default_rng(frames)
    encoded = rng.standard_normal((1, latents, bundle.widths[0]), dtype=np.float32)
    voice = rng.standard_normal((1, bundle.widths[1]), dtype=np.float32)
    both = [backend.denoiser([encoded, -encoded[:, 1:]], voice, [frames, frames - 3]) for backend in backends]
    for timestep in (3999, 12):
        x = rng.standard_normal((1, 100, frames), dtype=np.float32)
        (wanted, second), (prediction, own_second) = (each([x, -x[..., 3:]], timestep, guided) for each in both)
        assert error(second[0], own_second[0]) <= LARGEST_ERROR
        assert error(wanted[0], prediction[0]) <= LARGEST_ERROR
        if guided:
            assert error(exact(backends[0], x, timestep), prediction[1]) <= UNCONDITIONED_ERROR


@pytest.mark.parametrize("preset", ["fastest", "ultra_fast"])
def test_the_same_seed_gives_the_same_speech(bundle, backends, preset):
    settings = TortoiseSettings.of(
        preset, bundle.settings, candidates=3 if preset == "ultra_fast" else 1, sampling=Sampling(max_codes=40)
    )
    expected, actual = (
        TortoiseSpeaker(bundle, backend).speak("Hello, turtle.", seed=3, settings=settings) for backend in backends
    )
    assert actual.codes == expected.codes
    # only 40 dB, because random weights amplify rounding, most of all in UnivNet
    assert np.square(expected.audio - actual.audio).sum() <= 1e-4 * np.square(expected.audio).sum()


def test_a_call_uses_the_sessions_that_load_loaded_and_a_released_network_is_loaded_again(bundle):
    backend, noise = load_backend("onnx:cpu", bundle, "fp32", threads=1), np.ones((1, bundle.widths[0]), np.float32)
    backend.load("rlg_auto", "autoregressive")
    assert len(backend.sessions._loaded) == 3  # the functions rlg_auto, prefill and step
    first = backend.run("ar_random", noise=noise)
    decoder = backend.decoder(1, 4)
    decoder.prefill(np.ones((5, 32), np.float32))
    decoder.step(np.ones((1, 1, 32), np.float32), np.zeros(1, dtype=np.int64))
    assert len(backend.sessions._loaded) == 3
    backend.release()
    assert len(backend.sessions._loaded) == 0
    assert (backend.run("ar_random", noise=noise) == first).all()


CUDA, GPU_TENSORRT = (OnnxDevice(name, CPU, "cuda", "nothing") for name in ("cuda", "tensorrt"))


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("onnx:cpu", {"cache": "io"}, "cache has no effect on the backend onnx:cpu: it is for Core ML packages"),
        ("onnx:cpu", {"compute_units": "ALL"}, "compute_units has no effect on the backend onnx:cpu"),
        ("onnx:npu", {}, "no backend is named 'onnx:npu'"),
        (
            "onnx:cpu",
            {"precision": "8bit"},
            "precision must be one of fp32, fp16, int8, int4 for ONNX packages, got 8bit",
        ),
        ("onnx:cpu", {"precision": "fp16"}, "in fp32, not in fp16"),
    ],
)
def test_options_without_effect_and_missing_precisions_are_refused(bundle, backend, options, message):
    assert_refused(message, load_backend, backend, bundle, **options)


@pytest.mark.parametrize(
    ("device", "precision", "advice"),
    [(CUDA, "int8", "fp16 or int4"), (GPU_TENSORRT, "int8", "fp16"), (GPU_TENSORRT, "int4", "fp16")],
)
def test_what_a_gpu_would_compute_on_the_cpu_is_refused_in_one_line_with_what_to_use(
    decoder_bundle, monkeypatch, device, precision, advice
):
    monkeypatch.setattr(providers, "choose_onnx_device", lambda name: device)
    expected = (
        rf"precision {precision} of autoregressive is too slow on onnx:{device.name}, .*: "
        rf"use backend=onnx:cpu, .* precision={advice}$"
    )
    assert_refused(expected, lambda: load_backend(f"onnx:{device.name}", decoder_bundle, precision))
    assert load_backend(f"onnx:{device.name}", decoder_bundle, "fp16").name.startswith(f"onnx:{device.name} fp16")


@pytest.mark.parametrize(("device", "precision"), [(DEVICES["cpu"], "int8"), (CUDA, "fp32")])
def test_auto_takes_int8_first_on_the_cpu_alone(decoder_bundle, device, precision):
    packages = {package.precision: package for package in decoder_bundle.onnx_packages}
    chosen = select_packages(decoder_bundle, "auto", [packages["int8"], packages["fp32"]], "onnx", device.name)
    assert chosen["autoregressive"].precision == precision


def test_vocoders_and_networks_that_run_once_stay_in_fp32():
    stored = {name: stored_precision(ONNX, network, "fp16") for name, network in NETWORKS.items()}
    assert {name for name in stored if stored[name] == "fp16"} == {"autoregressive", "diffusion", "clvp"}


def test_a_bundle_without_onnx_packages_is_an_error_with_advice(complain):
    assert main(["say", "Hello.", "--backend", "onnx:cpu", "-o", "/dev/null/no.wav"]) != 0
    assert "has no ONNX packages: make them with `ane convert" in complain("verify", "--against", "onnx")
