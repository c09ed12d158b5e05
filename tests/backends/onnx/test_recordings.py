"""Sessions that record, make room and are loaded again beneath decoders that are alive; no GPU is needed for it."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from ane.backends import load_backend
from ane.backends.onnx import backend as ort_backend
from ane.backends.onnx.backend import CUDA_GRAPH, OrtBackend
from ane.backends.onnx.blocks import Memory
from ane.backends.onnx.providers import CPU, Device, OutOfMemoryError, engine_errors
from ane.backends.onnx.sessions import Wanted, loader
from ane.backends.onnx.tensorrt import Engines, Machine
from converters.proof.parity import mean_snr_db

RECORDING = Device("cuda", CPU, "cpu", "nothing")
WITH_ENGINES = Device("tensorrt", CPU, "cpu", "nothing")


class Session:
    """A session on the CPU that notes the numbers of its recordings; ``faults`` are what runs to come fail with."""

    def __init__(self, session: Any, numbers: list[int], faults: list[str]):
        self.session, self.numbers, self.faults = session, numbers, faults

    def get_inputs(self) -> list[Any]:
        return self.session.get_inputs()

    def run(self, *args: Any) -> list[np.ndarray]:
        return self.session.run(*args)

    def io_binding(self) -> Any:
        return self.session.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        if self.faults and (options is not None or "allocate" in self.faults[0]):
            raise Fail(self.faults.pop(0))
        if options is not None:
            self.numbers.append(int(options.get_run_config_entry("gpu_graph_id")))
        self.session.run_with_iobinding(binding, options)


class Loads:
    """Loads graphs on the CPU, whatever the provider's options; ``refused`` is what a session that records raises."""

    def __init__(self, refused: Exception | None = None):
        self.refused, self.wanted, self.numbers, self.faults = refused, [], [], []
        self.alive: weakref.WeakSet[Session] = weakref.WeakSet()
        self._load = loader(Device("cpu", CPU, "cpu", "nothing"), 1)

    def __call__(self, wanted: Wanted) -> Session:
        if self.refused and CUDA_GRAPH[0] in wanted.options:
            with engine_errors("load it"):
                raise self.refused
        self.wanted.append(wanted)
        made = Session(self._load(replace(wanted, options=())), self.numbers, self.faults)
        self.alive.add(made)
        return made


@pytest.fixture(scope="module")
def torch(bundle):
    return load_backend("torch:cpu", bundle, "fp32", threads=1, keep=True)


def made(bundle, torch, load: Loads, device: Device = RECORDING, **options: Any) -> OrtBackend:
    return OrtBackend(bundle, device, torch, "fp32", threads=1, load=load, **options)


def columns(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, 64), dtype=np.float32)


def takes(decoder: Any, turns: int = 3, prefix: int = 6) -> list[np.ndarray]:
    seen = list(decoder.prefill(columns(0, prefix)))
    for turn in range(turns):
        seen += decoder.step(columns(turn, 2, 1), np.full(2, turn))
    return seen


def near(torch, got: list[np.ndarray], **how: int) -> bool:
    return mean_snr_db(takes(torch.decoder(2, 8), **how), got) >= 100


def test_no_two_decoders_of_a_backend_replay_the_same_recording(bundle, torch):
    load = Loads()
    backend = made(bundle, torch, load)
    first, second = backend.decoder(2, 8), backend.decoder(2, 8)
    takes(first)
    takes(second)
    assert load.numbers == [1, 1, 1, 2, 2, 2]
    first.step(columns(5, 2, 1), np.full(2, 3))
    first.step(columns(5, 1, 2), np.full(1, 3))             # a tail
    assert load.numbers[6:] == [1, -1]


def test_recordings_do_not_pile_up(bundle, torch, monkeypatch):
    monkeypatch.setattr(ort_backend, "RECORDINGS", 2)
    load = Loads()
    backend = made(bundle, torch, load)
    decoders = [backend.decoder(2, 8) for _ in range(5)]
    assert all(near(torch, takes(decoder)) for decoder in decoders)
    assert max(load.numbers) == 2
    gc.collect()
    assert len(load.alive) == 2                             # prefill, step
    _, logits = decoders[0].step(columns(9, 2, 1), np.full(2, 3))      # recorded anew, by the session of now
    _, wanted = decoders[1].step(columns(9, 2, 1), np.full(2, 3))
    assert (logits == wanted).all()


@pytest.mark.parametrize("when", ["loading", "running"])
def test_a_step_that_cannot_be_recorded_is_taken_unrecorded_and_that_is_told_once(bundle, torch, when):
    said: list[str] = []
    text = "This session cannot use the graph capture feature as requested by the user"
    load = Loads(Fail(text) if when == "loading" else None)
    backend = made(bundle, torch, load, notice=said.append)
    if when == "running":
        load.faults.append("CUDA failure 900: operation not permitted when stream is capturing")
    decoders = [backend.decoder(2, 8) for _ in range(2)]
    assert all(near(torch, takes(decoder)) for decoder in decoders)
    assert load.numbers == []
    line, = said
    assert line.startswith("Steps are not recorded as CUDA graphs: ONNX Runtime cannot")


@pytest.mark.parametrize(("raised", "rises"), [(RuntimeError("CUDA failure 2: out of memory"), OutOfMemoryError),
                                               (KeyError("a bug"), KeyError)])
def test_what_is_no_fault_of_recording_rises(bundle, torch, raised, rises):
    said: list[str] = []
    decoder = made(bundle, torch, Loads(raised), notice=said.append).decoder(2, 8)
    with pytest.raises(rises):
        takes(decoder)
    assert said == []


def test_a_session_that_makes_room_is_gone_though_its_decoder_lives(bundle, torch):
    load = Loads()
    backend = made(bundle, torch, load)
    decoder = backend.decoder(2, 8)
    before = takes(decoder)
    backend.sessions.forget()
    gc.collect()
    assert len(load.alive) == 0
    assert all((one == other).all() for one, other in zip(before, takes(decoder), strict=True))


def test_a_budget_is_kept_while_a_decoder_is_used(bundle, torch):
    load = Loads()
    backend = made(bundle, torch, load, budget=1)
    assert near(torch, takes(backend.decoder(2, 8)))
    gc.collect()
    assert len(load.alive) == 1


@pytest.mark.parametrize("what", ["prefill", "step", "denoise"])
def test_memory_that_runs_out_while_a_bound_call_runs_is_made_by_the_others(bundle, torch, what):
    load = Loads()
    backend = made(bundle, torch, load)
    backend.run("ar_random", noise=np.ones((1, bundle.widths[0]), np.float32))
    assert len(backend.sessions) == 1
    out = "Failed to allocate memory for requested buffer"
    if what == "denoise":
        spoken, voice = columns(1, 1, 4), columns(2, 1)
        wanted, got = (each.denoiser(spoken, voice, 17) for each in (torch, backend))
        x = np.random.default_rng(0).standard_normal((1, 100, 17), dtype=np.float32)
        load.faults.append(out)
        assert mean_snr_db([wanted(x, 12, False)], [got(x, 12, False)]) >= 90
    else:
        decoder = backend.decoder(2, 8)
        if what == "step":
            decoder.prefill(columns(0, 6))
        load.faults.append(out)
        assert near(torch, takes(decoder))
    assert load.faults == []
    gc.collect()
    assert len(load.alive) == len(backend.sessions)
    assert sum(each.path.stem == "ar_random" for each in load.wanted) == 1
    backend.run("ar_random", noise=np.ones((1, bundle.widths[0]), np.float32))
    assert sum(each.path.stem == "ar_random" for each in load.wanted) == 2          # it had gone


def test_memory_that_runs_out_while_rows_are_written_is_made_by_the_sessions():
    made_room: list[bool] = []
    memory = Memory(Device("cpu", CPU, "cpu", "nothing"), True, lambda: made_room.append(True))
    target, source = memory.block((4, 3), np.float32), memory.block((1, 3), np.float32)
    source.fill(np.ones((1, 3), np.float32))
    memory.write_rows(target, np.array([0]), source)            # loads the graph
    dtype, session = memory._writers.popitem()
    memory._writers[dtype] = Session(session, [], ["Failed to allocate memory for requested buffer"])
    memory.write_rows(target, np.array([2]), source)
    assert made_room == [True]
    assert target.numpy().sum(axis=1).tolist() == [3, 0, 3, 0]


def test_prefixes_of_a_bucket_share_a_step_s_engine(bundle, torch, tmp_path):
    load = Loads()
    backend = made(bundle, torch, load, WITH_ENGINES, engines=Engines(tmp_path, Machine("some GPU", ())))
    for length in (6, 40, 64, 9):
        decoder = backend.decoder(2, 8)
        assert near(torch, takes(decoder, prefix=length), prefix=length)
        assert near(torch, takes(decoder, prefix=5), prefix=5)
    asked = [each for each in load.wanted if each.path.stem == "step"]
    assert len(asked) == 1
    assert takes(backend.decoder(2, 8), prefix=65)
    assert sum(each.path.stem == "step" for each in load.wanted) == 2
