"""The cache of sessions: what it unloads, and when. No GPU is needed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ane.backends import load_backend
from ane.backends.onnx import providers as providers_module
from ane.backends.onnx.providers import DEVICES
from ane.backends.onnx.sessions import SessionCache, SessionKey, session_loader


class FakeLoader:
    """Loads names instead of sessions."""

    def __init__(self):
        self.loaded: list[str] = []

    def __call__(self, key: SessionKey) -> str:
        self.loaded.append(key.path.name)
        return key.path.name


def sessions(budget: int | None = None) -> tuple[SessionCache, FakeLoader]:
    load = FakeLoader()
    return SessionCache(load, budget), load


def key(name: str, size: int = 10) -> SessionKey:
    return SessionKey(Path("folder") / name, size)


def test_the_least_recently_used_session_is_unloaded_to_stay_in_the_budget():
    cache, load = sessions(budget=25)
    for name in ("a", "b", "a", "c"):
        cache.get(key(name))
    assert [key(name) in cache for name in "abc"] == [True, False, True]
    assert load.loaded == ["a", "b", "c"]


@pytest.mark.parametrize(("budget", "loaded"), [(29, 2), (30, 3), (31, 3)])
def test_sessions_may_take_exactly_the_budget(budget, loaded):
    cache, _ = sessions(budget=budget)
    for name in "abc":
        cache.get(key(name))
    assert len(cache) == loaded


def test_a_session_larger_than_the_budget_is_loaded_alone():
    cache, _ = sessions(budget=25)
    cache.get(key("a"))
    assert cache.get(key("large", 100)) == "large"
    assert len(cache) == 1


@pytest.mark.parametrize(("recordings", "loaded"), [(1, True), (2, False), (3, False)])
def test_a_session_is_unloaded_after_so_many_recordings(recordings, loaded):
    cache, _ = sessions()
    assert [cache.next_recording(key("a")) for _ in range(recordings)] == list(range(1, recordings + 1))
    cache.unload_after(key("a"), 2)
    assert (key("a") in cache) == loaded


def test_a_package_s_sessions_are_unloaded_alone():
    cache, _ = sessions()
    other = SessionKey(Path("other") / "a", 10)
    for each in (key("a"), key("b"), other):
        cache.get(each)
    cache.unload(Path("folder"))
    assert [each in cache for each in (key("a"), key("b"), other)] == [False, False, True]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.just(10)), max_size=30), st.integers(10, 60))
def test_a_budget_is_never_exceeded(uses, budget):
    cache, _ = sessions(budget=budget)
    for name, size in uses:
        cache.get(key(name, size))
        assert cache.used <= budget
        assert key(name, size) in cache


def test_a_budget_below_any_session_keeps_one(onnx_packages):
    bundle = onnx_packages.bundle("rlg_auto", "rlg_diffuser")
    small = load_backend("onnx:cpu", bundle, "fp32", threads=1, memory=1e-6, keep=True)
    unlimited = load_backend("onnx:cpu", bundle, "fp32", threads=1, keep=True)
    autoregressive, diffusion = (np.ones((1, width), np.float32) for width in bundle.widths)
    for stage, noise in (("ar_random", autoregressive), ("diffusion_random", diffusion), ("ar_random", autoregressive)):
        np.testing.assert_array_equal(small.run(stage, noise=noise), unlimited.run(stage, noise=noise))
        assert len(small.sessions) == 1


@pytest.mark.parametrize(("name", "own"), [("cuda", {"enable_cuda_graph": "1"}), ("tensorrt", {})])
def test_float32_on_a_gpu_is_not_reduced_to_tf32(monkeypatch, name, own):
    asked: list[Any] = []

    def session(path: str, options: Any, providers: list[Any], enable_fallback: int) -> Any:
        assert not enable_fallback
        asked.extend(providers)
        return SimpleNamespace(get_providers=lambda: [DEVICES[name].provider])

    monkeypatch.setattr(providers_module.onnxruntime_module(), "InferenceSession", session)
    session_loader(DEVICES[name])(SessionKey(Path("step.onnx"), 1, tuple(own.items())))
    assert ("CUDAExecutionProvider", {"use_tf32": "0", **own}) in asked
