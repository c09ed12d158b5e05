"""ONNX Runtime on an NVIDIA GPU: CUDA and TensorRT say what the CPU says, from caches that stay on the device."""

import numpy as np
import pytest

from ane.backends import load_backend
from ane.backends.ort.engines import Engines, Record
from ane.backends.ort.providers import DEVICES, loaded
from ane.backends.pytorch import TorchBackend
from ane.model.bundle import Bundle
from ane.sampling import Sampling
from ane.settings import Settings
from ane.synthesizer import Synthesizer
from converters.parity import snr
from tests.onnx_packages import onnx_bundle

HOW = ("on a machine with an NVIDIA GPU: pip install -e '.[test]'; pip uninstall onnxruntime; pip install "
       "onnxruntime-gpu tensorrt; pytest tests/cuda")


def missing(name: str) -> str:
    try:
        return "" if loaded(DEVICES[name]) else f"ONNX Runtime's {DEVICES[name].spoken} does not load here; {HOW}"
    except Exception as error:
        return f"{error}; {HOW}"


on_cuda = pytest.mark.skipif(bool(missing("cuda")), reason=missing("cuda"))
on_tensorrt = pytest.mark.skipif(bool(missing("tensorrt")), reason=missing("tensorrt"))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory, worker_id: str) -> Bundle:
    own = tmp_path_factory.getbasetemp()
    return onnx_bundle(own if worker_id == "master" else own.parent)


@pytest.fixture
def reference(bundle) -> TorchBackend:
    return load_backend("torch:cpu", bundle, "fp32")


def columns(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*shape, 64), dtype=np.float32)


@on_cuda
@pytest.mark.parametrize(("precision", "bar"), [("fp32", 55)])      # CUDA multiplies float32 in TF32
def test_the_decoder_on_cuda_reads_as_on_torch(bundle, reference, precision, bar):
    said: list[str] = []
    each = reference.decoder(3, 80), load_backend("onnx:cuda", bundle, precision, notice=said.append).decoder(3, 80)
    seen = [one.prefill(columns(0, 20)) for one in each]
    assert snr([*seen[0]], [*seen[1]]) >= bar
    length = np.zeros(3, dtype=np.int64)
    for turn in range(70):              # across a bucket, recorded anew
        if turn == 40:
            length[1] = 0
        x = columns(turn, 3, 1)
        wanted, got = (one.step(x, length) for one in each)
        assert snr([*wanted], [*got]) >= bar, (turn, said)
        length += 1
    x = columns(99, 1, 5)
    wanted, got = (one.step(x, length[1:2], 1) for one in each)
    assert snr([*wanted], [*got]) >= bar


@on_cuda
def test_lanes_on_several_prefixes_on_cuda_read_each_its_own(bundle, reference):
    together = load_backend("onnx:cuda", bundle, "fp32").decoder(2, 8, 2, 12)
    for place, length in enumerate((12, 7)):
        together.prefill(columns(place, length), place)
    x = columns(5, 2, 1)
    hidden, _ = together.step(x, np.zeros(2, dtype=np.int64), 0, np.array([1, 0]))
    for lane, (place, length) in enumerate(((1, 7), (0, 12))):
        alone = reference.decoder(1, 8)
        alone.prefill(columns(place, length))
        wanted, _ = alone.step(x[lane:lane + 1], np.zeros(1, dtype=np.int64))
        assert snr([wanted], [hidden[lane:lane + 1]]) >= 55


@on_cuda
def test_plain_onnx_takes_cuda_and_says_so(bundle):
    assert load_backend("onnx", bundle, "fp32").name == "onnx:cuda fp32"


@on_cuda
def test_a_sentence_on_cuda_has_the_codes_of_the_cpu(bundle):
    settings = Settings.of("fastest", bundle.settings, candidates=1, sampling=Sampling(max_codes=20))
    wanted, got = (Synthesizer(bundle, load_backend(name, bundle, "fp32")).speak("Hello.", seed=3, settings=settings)
                   for name in ("onnx:cpu", "onnx:cuda"))
    assert got.codes == wanted.codes


@on_tensorrt
def test_tensorrt_keeps_an_engine_for_each_bucket_and_takes_it_again(bundle, reference, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    mel = np.random.default_rng(0).standard_normal((1, 80, 100), dtype=np.float32)
    wanted = reference.run("ar_conditioning", mel=mel)
    assert snr([wanted], [load_backend("onnx:tensorrt", bundle, "fp32").run("ar_conditioning", mel=mel)]) >= 50
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "engines").rglob("*.engine")}
    assert kept
    assert all(Record.read(path.parent).gpu == Engines().machine.gpu for path in kept)
    load_backend("onnx:tensorrt", bundle, "fp32").run("ar_conditioning", mel=mel[..., :70])        # the same bucket
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    load_backend("onnx:tensorrt", bundle, "fp32", afresh=True).run("ar_conditioning", mel=mel)
    assert {path.stat().st_mtime_ns for path in kept if path.exists()} != set(kept.values())
