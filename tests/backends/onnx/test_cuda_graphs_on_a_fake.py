"""CUDA graphs, and sessions that are unloaded while decoders use them. The sessions are fakes: no GPU is needed."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from ane.backends import load_backend
from ane.backends.onnx import backend as onnx_backend
from ane.backends.onnx import decoder as onnx_decoder
from ane.backends.onnx.backend import CUDA_GRAPH, OnnxBackend
from ane.backends.onnx.providers import CPU, OnnxDevice, onnx_errors
from ane.backends.onnx.sessions import SessionKey, session_loader
from ane.backends.onnx.tensorrt import NvidiaMachine, TensorRtEngines
from ane.bundles.bundle import Bundle
from ane.system.errors import UserError
from converters.proof import verify
from converters.proof.comparison import LayerComparison
from converters.proof.parity import mean_snr_db, reference_backend

CUDA = OnnxDevice("cuda", CPU, "cpu", "nothing")
TENSORRT = OnnxDevice("tensorrt", CPU, "cpu", "nothing")


class RecordingSession:
    """A session on the CPU that notes the numbers of recordings. Its next bound runs fail with ``errors``."""

    def __init__(self, session: Any, numbers: list[int], errors: list[str]):
        self.session, self.numbers, self.errors = session, numbers, errors

    def get_inputs(self) -> list[Any]:
        return self.session.get_inputs()

    def run(self, *args: Any) -> list[np.ndarray]:
        return self.session.run(*args)

    def io_binding(self) -> Any:
        return self.session.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if self.errors and options is not None:
            raise RuntimeError(f"Error in execution: {self.errors.pop(0)}")      # as the real one does
        if options is not None:
            self.numbers.append(int(options.get_run_config_entry("gpu_graph_id")))
        self.session.run_with_iobinding(binding, options)


class FakeSessionLoader:
    """Loads graphs on the CPU, without the provider's options. A session that records fails to load with ``error``."""

    def __init__(self, error: Exception | None = None):
        self.error, self.keys, self.numbers, self.errors = error, [], [], []
        self.alive: weakref.WeakSet[RecordingSession] = weakref.WeakSet()
        self._load = session_loader(OnnxDevice("cpu", CPU, "cpu", "nothing"), 1)

    def __call__(self, key: SessionKey) -> RecordingSession:
        if self.error and CUDA_GRAPH[0] in key.options:
            with onnx_errors("load it"):
                raise self.error
        self.keys.append(key)
        loaded = RecordingSession(self._load(replace(key, options=())), self.numbers, self.errors)
        self.alive.add(loaded)
        return loaded


@pytest.fixture(scope="module")
def bundle(decoder_bundle) -> Bundle:
    return decoder_bundle


@pytest.fixture(scope="module")
def torch(bundle):
    return load_backend("torch:cpu", bundle, "fp32", threads=1, keep=True)


def make_backend(bundle, torch, load: FakeSessionLoader, device: OnnxDevice = CUDA, **options: Any) -> OnnxBackend:
    return OnnxBackend(bundle, device, torch, "fp32", threads=1, load=load, **options)


def columns(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, 32), dtype=np.float32)


def run_decoder(decoder: Any, turns: int = 3, prefix: int = 6) -> list[np.ndarray]:
    outputs = list(decoder.prefill(columns(0, prefix)))
    for turn in range(turns):
        outputs += decoder.step(columns(turn, 2, 1), np.full(2, turn))
    return outputs


def near(torch, actual: list[np.ndarray], **arguments: int) -> bool:
    return mean_snr_db(run_decoder(torch.decoder(2, 8), **arguments), actual) >= 100


def test_each_decoder_of_a_backend_has_its_own_recording(bundle, torch):
    load = FakeSessionLoader()
    backend = make_backend(bundle, torch, load)
    first, second = backend.decoder(2, 8), backend.decoder(2, 8)
    run_decoder(first)
    run_decoder(second)
    assert load.numbers == [1, 1, 1, 2, 2, 2]
    first.step(columns(5, 2, 1), np.full(2, 3))
    first.step(columns(5, 1, 2), np.full(1, 3))             # several columns are not recorded
    assert load.numbers[6:] == [1, -1]


def test_a_step_is_recorded_again_where_its_caches_have_moved(bundle, torch, monkeypatch):
    monkeypatch.setattr(onnx_decoder, "GROWTH", 4)
    load = FakeSessionLoader()
    decoder = make_backend(bundle, torch, load).decoder(2, 8)
    actual = run_decoder(decoder, turns=7)
    assert load.numbers == [1, 1, 1, 1, 2, 2, 2]
    assert mean_snr_db(run_decoder(torch.decoder(2, 8), turns=7), actual) >= 100


def test_sessions_with_many_recordings_are_loaded_again(bundle, torch, monkeypatch):
    monkeypatch.setattr(onnx_backend, "MAX_RECORDINGS", 2)
    load = FakeSessionLoader()
    backend = make_backend(bundle, torch, load)
    decoders = [backend.decoder(2, 8) for _ in range(5)]
    assert all(near(torch, run_decoder(decoder)) for decoder in decoders)
    assert max(load.numbers) == 2
    gc.collect()
    assert len(load.alive) == 2                             # prefill, step
    _, logits = decoders[0].step(columns(9, 2, 1), np.full(2, 3))      # recorded again, by the new session
    _, expected = decoders[1].step(columns(9, 2, 1), np.full(2, 3))
    assert (logits == expected).all()


@pytest.mark.parametrize("when", ["loading", "running"])
def test_a_step_that_cannot_be_recorded_runs_unrecorded_with_one_notice(bundle, torch, when, notices):
    text = "This session cannot use the graph capture feature as requested by the user"
    load = FakeSessionLoader(Fail(text) if when == "loading" else None)
    backend = make_backend(bundle, torch, load)
    if when == "running":
        load.errors.append("CUDA failure 900: operation not permitted when stream is capturing")
    decoders = [backend.decoder(2, 8) for _ in range(2)]
    assert all(near(torch, run_decoder(decoder)) for decoder in decoders)
    assert load.numbers == []
    line, = notices
    assert line.startswith("Steps are not recorded as CUDA graphs: ONNX Runtime cannot")


@pytest.mark.parametrize(("error", "expected"), [(RuntimeError("CUDA failure 2: out of memory"), UserError),
                                               (KeyError("a bug"), KeyError)])
def test_other_errors_while_recording_are_raised(bundle, torch, error, expected, notices):
    decoder = make_backend(bundle, torch, FakeSessionLoader(error)).decoder(2, 8)
    with pytest.raises(expected):
        run_decoder(decoder)
    assert notices == []


@pytest.mark.parametrize("layers", [False, True])
def test_verify_records_steps_unless_it_reads_values_inside_them(bundle, monkeypatch, layers):
    """A replayed graph writes its outputs only where they were when it was recorded."""
    load = FakeSessionLoader()
    monkeypatch.setattr(verify, "session_loader", lambda device: load)
    package = next(each for each in bundle.onnx_packages if each.network == "autoregressive")
    comparison = LayerComparison() if layers else None
    result = verify.onnx_runner(CUDA).check(bundle, package, "step", reference_backend(bundle), comparison)
    assert result.passed
    assert bool(result.values) == layers
    assert bool(load.numbers) != layers


def test_an_unloaded_session_is_freed_although_its_decoder_is_referenced(bundle, torch):
    load = FakeSessionLoader()
    backend = make_backend(bundle, torch, load)
    decoder = backend.decoder(2, 8)
    before = run_decoder(decoder)
    backend.sessions.unload()
    gc.collect()
    assert len(load.alive) == 0
    assert all((one == other).all() for one, other in zip(before, run_decoder(decoder), strict=True))


def test_the_budget_holds_while_a_decoder_is_used(bundle, torch):
    load = FakeSessionLoader()
    backend = make_backend(bundle, torch, load, budget=1)
    assert near(torch, run_decoder(backend.decoder(2, 8)))
    gc.collect()
    assert len(load.alive) == 1


def test_prefixes_of_a_bucket_share_the_engine_of_steps(bundle, torch, tmp_path):
    load = FakeSessionLoader()
    engines = TensorRtEngines(tmp_path, NvidiaMachine("some GPU", ()))
    backend = make_backend(bundle, torch, load, TENSORRT, engines=engines)
    for length in (6, 40, 64, 9):
        decoder = backend.decoder(2, 8)
        assert near(torch, run_decoder(decoder, prefix=length), prefix=length)
        assert near(torch, run_decoder(decoder, prefix=5), prefix=5)
    requested = [each for each in load.keys if each.path.stem == "step"]
    assert len(requested) == 1
    assert run_decoder(backend.decoder(2, 8), prefix=65)
    assert sum(each.path.stem == "step" for each in load.keys) == 2
