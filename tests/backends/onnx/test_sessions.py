"""Test the cache of ONNX Runtime sessions: which sessions it unloads, and how it makes them. This needs no GPU."""

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

from ane.backends import load_backend
from ane.backends.onnx import providers as providers_module
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import CPU, DEVICES, IDENTITY, OnnxDevice
from ane.backends.onnx.sessions import SessionCache, SessionKey, session_loader
from ane.bundles.bundle import Bundle
from ane.system.errors import UserError
from converters.proof.parity import mean_snr_db
from tests.backends import decoder_steps

columns = partial(decoder_steps.columns, width=32)
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
    outputs = list(decoder.prefill(columns(0, prefix)))
    for turn in range(3):
        outputs += decoder.step(columns(turn, 2, 1), np.full(2, turn))
    return outputs


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
    assert all((one == other).all() for one, other in zip(before, run_decoder(decoder), strict=True))


def test_prefixes_of_a_bucket_share_tensorrt_s_engine_of_steps(decoder_bundle: Bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    load, torch = LoadedOnTheCpu(), load_backend("torch:cpu", decoder_bundle, "fp32", threads=1, keep=True)
    backend = OnnxBackend(decoder_bundle, TENSORRT, torch, "fp32", load=load, machine="some GPU")
    for length in (6, 40, 64, 9):
        decoder = backend.decoder(2, 8)
        for prefix in (length, 5):
            assert mean_snr_db(run_decoder(torch.decoder(2, 8), prefix), run_decoder(decoder, prefix)) >= 100
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
    with pytest.raises(
        UserError, match=r"Dml did not load for copy\.onnx, .*: set up Windows, or use backend=onnx:cpu$"
    ):
        session_loader(absent)(SessionKey(tmp_path / "copy.onnx"))
