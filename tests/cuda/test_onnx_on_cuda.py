"""Test that CUDA and TensorRT of ONNX Runtime give torch's results on the CPU. This needs an NVIDIA GPU."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.torch.backend import TorchBackend
from ane.bundles.bundle import Bundle
from ane.bundles.package_records import PackageFolder
from ane.cli import main
from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from converters.conversion import convert
from converters.function_table import ONNX_THRESHOLDS
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from converters.proof.parity import mean_snr_db
from tests.arrays import noise
from tests.backends import decoder_steps
from tests.fastspeech_files import fastspeech_bundle
from tests.refusals import assert_refused, refusal_of

VOCODER_SNR = 60  # required dB. ONNX Runtime's default TF32 would reach about 44
on_cuda = pytest.mark.usefixtures("onnx_on_cuda")
on_tensorrt = pytest.mark.usefixtures("onnx_on_tensorrt")


@pytest.fixture(scope="session")
def bundle(onnx_packages) -> Bundle:
    return onnx_packages.bundle()


@pytest.fixture
def reference(bundle) -> TorchBackend:
    return load_backend("torch:cpu", bundle, "fp32")


@pytest.fixture
def load_precision(bundle, onnx_packages, reference):
    """A function from a precision to the backend on CUDA; in fp16 with packages of the denoiser too."""

    def load(precision: str) -> OnnxBackend:
        if precision != "fp16":
            return load_backend("onnx:cuda", bundle, precision)
        packages = [onnx_packages.package(network, "fp16") for network in ("autoregressive", "clvp", "diffusion")]
        packages += [package for package in bundle.onnx_packages if package.precision == "fp32"]
        return OnnxBackend(
            bundle, DEVICES["cuda"], reference, unpublished=PackageFolder(onnx_packages.folder, packages)
        )

    return load


columns = partial(decoder_steps.columns, width=32)


@on_cuda
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_the_decoder_on_cuda_equals_torch(reference, load_precision, precision):
    threshold = ONNX_THRESHOLDS[precision]
    both = reference.decoder(3, 80), load_precision(precision).decoder(3, 80)
    seen = [one.prefill(columns(0, 20)) for one in both]
    assert mean_snr_db([*seen[0]], [*seen[1]]) >= threshold
    length = np.zeros(3, dtype=np.int64)
    for turn in range(70):  # enough steps to leave the first bucket
        if turn == 40:
            length[1] = 0
        x = columns(turn, 3, 1)
        expected, actual = (one.step(x, length) for one in both)
        assert mean_snr_db([*expected], [*actual]) >= threshold, turn
        length += 1
    x = columns(99, 1, 5)
    expected, actual = (one.step(x, length[1:2], 1) for one in both)
    assert mean_snr_db([*expected], [*actual]) >= threshold


@on_cuda
def test_two_decoders_in_turn_on_cuda_have_their_own_caches(bundle, reference):
    backend = load_backend("onnx:cuda", bundle, "fp32")
    pairs = [(reference.decoder(2, 8), backend.decoder(2, 8)) for _ in range(2)]
    for number, pair in enumerate(pairs):
        for one in pair:
            one.prefill(columns(number, 9 + number))
    for turn in range(5):
        for number, pair in enumerate(pairs):
            x = columns(10 * turn + number, 2, 1)
            expected, actual = (one.step(x, np.full(2, turn)) for one in pair)
            assert mean_snr_db([*expected], [*actual]) >= 90, (turn, number)
    del pairs[0]  # frees the first decoder and its buffers before the third is made
    third = reference.decoder(2, 8), backend.decoder(2, 8)
    for one in third:
        one.prefill(columns(7, 9))
    for turn in range(3):
        expected, actual = (one.step(columns(turn, 2, 1), np.full(2, turn)) for one in third)
        assert mean_snr_db([*expected], [*actual]) >= 90, turn


IDS = np.random.default_rng(0).integers(0, 200, (2, 40))


@on_cuda
@pytest.mark.parametrize(
    ("stage", "inputs", "threshold"),
    [
        ("ar_conditioning", {"mel": noise(1, 80, 130)}, 90),
        ("diffusion_conditioning", {"mel": noise(1, 100, 130)}, 90),
        ("ar_random", {"noise": noise(2, 32)}, 90),
        ("clvp_text", {"tokens": IDS}, 90),
        ("clvp_speech", {"codes": IDS}, 90),
        ("univnet", {"mel": noise(1, 100, 19), "noise": noise(1, 64, 29)}, VOCODER_SNR),
        ("hifigan", {"frames": noise(1, 32, 9), "conditioning": noise(1, 32)}, VOCODER_SNR),
    ],
)
def test_stages_on_cuda_equal_torch(bundle, reference, stage, inputs, threshold):
    expected, actual = (both.run(stage, **inputs) for both in (reference, load_backend("onnx:cuda", bundle, "fp32")))
    assert mean_snr_db([expected], [actual]) >= threshold


@on_cuda
def test_the_denoiser_on_cuda_equals_torch(bundle, reference, load_precision):
    rng = np.random.default_rng(0)
    latents, voice = columns(1, 1, 12), rng.standard_normal((1, bundle.widths[1]), dtype=np.float32)
    exact, fp32, fp16 = (
        backend.denoiser([latents], voice, [51])
        for backend in (reference, load_precision("fp32"), load_precision("fp16"))
    )
    for timestep in (3999, 12):
        x = rng.standard_normal((1, 100, 51), dtype=np.float32)
        for guided in (False, True):
            [expected], [actual] = (denoise([x], timestep, guided) for denoise in (exact, fp32))
            assert mean_snr_db([expected[:1]], [actual[:1]]) >= 80
            assert mean_snr_db([expected], [actual]) >= 50  # without conditioning, random weights amplify rounding
        if timestep == 3999:
            [expected], [actual] = (denoise([x], timestep, False) for denoise in (exact, fp16))
            assert mean_snr_db([expected], [actual]) >= ONNX_THRESHOLDS["fp16"]


@on_cuda
def test_verify_passes_on_cuda(bundle):
    """Every function of every package in every precision."""
    assert main(["verify", "--against", "onnx:cuda", "--bundle", str(bundle.path)]) == 0


@on_cuda
def test_a_failure_on_cuda_is_an_error_and_nothing_is_printed(bundle, capfd):
    """A wrong shape fails in a kernel; the session stays on CUDA and works afterwards."""
    cuda = load_backend("onnx:cuda", bundle, "fp32")
    good = {"mel": np.zeros((1, 100, 19), np.float32), "noise": np.zeros((1, 64, 29), np.float32)}
    expected = cuda.run("univnet", **good)
    refusal_of(lambda: cuda.run_graph("univnet", "univnet", good | {"noise": np.zeros((1, 64, 3), np.float32)}))
    assert (cuda.run("univnet", **good) == expected).all()
    assert capfd.readouterr() == ("", "")


@on_cuda
def test_lanes_with_several_prefixes_on_cuda_see_their_own(bundle, reference):
    together = load_backend("onnx:cuda", bundle, "fp32").decoder(2, 8, 2, 12)
    for index, length in enumerate((12, 7)):
        together.prefill(columns(index, length), index)
    x = columns(5, 2, 1)
    hidden, _ = together.step(x, np.zeros(2, dtype=np.int64), 0, np.array([1, 0]))
    for lane, (index, length) in enumerate(((1, 7), (0, 12))):
        separate = reference.decoder(1, 8)
        separate.prefill(columns(index, length))
        expected, _ = separate.step(x[lane : lane + 1], np.zeros(1, dtype=np.int64))
        assert mean_snr_db([expected], [hidden[lane : lane + 1]]) >= 90


@on_cuda
def test_plain_onnx_uses_cuda_which_refuses_int8(bundle):
    assert load_backend("onnx", bundle, "fp32").name == "onnx:cuda fp32"
    assert_refused("int8 of autoregressive is too slow on onnx:cuda", load_backend, "onnx:cuda", bundle, "int8")


@on_cuda
def test_each_sentence_on_cuda_has_the_codes_of_the_cpu(bundle):
    """The second sentence uses sessions of the first."""
    settings = TortoiseSettings.of("fastest", bundle.settings, candidates=1, sampling=Sampling(max_codes=20))
    on_cpu, on_cuda = (
        TortoiseSpeaker(bundle, load_backend(name, bundle, "fp32")) for name in ("onnx:cpu", "onnx:cuda")
    )
    for text in ("Hello.", "Another sentence.", "Hello."):
        expected, actual = (each.speak(text, seed=3, settings=settings) for each in (on_cpu, on_cuda))
        assert actual.codes == expected.codes, text


@on_cuda
@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_smaller_precisions_speak_on_cuda(bundle, load_precision, precision):
    settings = TortoiseSettings.of("fastest", bundle.settings, candidates=1, sampling=Sampling(max_codes=20))
    synthesizer = TortoiseSpeaker(bundle, load_precision(precision))
    for _ in range(2):
        assert np.isfinite(synthesizer.speak("Hello.", seed=3, settings=settings).audio).all()


@on_tensorrt
def test_tensorrt_reuses_an_engine_for_each_bucket(bundle, reference, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))

    def engines() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "engines").rglob("*.engine")}

    mel = np.random.default_rng(0).standard_normal((1, 80, 100), dtype=np.float32)
    expected = reference.run("ar_conditioning", mel=mel)
    actual = load_backend("onnx:tensorrt", bundle, "fp32").run("ar_conditioning", mel=mel)
    assert mean_snr_db([expected], [actual]) >= 50
    kept = engines()
    assert kept
    # 70 frames belong to the same bucket
    load_backend("onnx:tensorrt", bundle, "fp32").run("ar_conditioning", mel=mel[..., :70])
    assert engines() == kept
    load_backend("onnx:tensorrt", bundle, "fp32").run("ar_conditioning", mel=np.repeat(mel, 2, axis=-1))  # another
    assert engines().keys() > kept.keys()


@on_tensorrt
def test_tensorrt_steps_with_prefixes_of_one_bucket_share_an_engine(bundle, reference, tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path))
    backend = load_backend("onnx:tensorrt", bundle, "fp32")
    kept: list[set[Path]] = []
    for length in (20, 41):
        both = reference.decoder(2, 8), backend.decoder(2, 8)
        for one in both:
            one.prefill(columns(0, length))
        expected, actual = (one.step(columns(1, 2, 1), np.zeros(2, dtype=np.int64)) for one in both)
        assert mean_snr_db([*expected], [*actual]) >= 50
        kept.append(set((tmp_path / "cache" / "engines").rglob("*.engine")))
    assert kept[0]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_fastspeech_equals_torch(request, tmp_path, monkeypatch, name):
    """A batch of two texts of different lengths, through both sides and the vocoder."""
    request.getfixturevalue(f"onnx_on_{name}")
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    bundle = convert(fastspeech_bundle(tmp_path), tmp_path / "bundle", [OnnxOptions()], target=OnnxTarget())
    texts = ["Hello there, how do you do?", "Yes."]
    expected, actual = (
        list(FastSpeechSynthesizer(bundle, load_backend(backend, bundle, "fp32")).speak_all(texts))
        for backend in ("torch:cpu", f"onnx:{name}")
    )
    assert mean_snr_db([speech.audio for speech in expected], [speech.audio for speech in actual]) >= 60


@on_tensorrt
def test_fastspeech_on_engines_of_ranges_in_fp16_that_are_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    bundle = convert(fastspeech_bundle(tmp_path), tmp_path / "bundle", [OnnxOptions()], target=OnnxTarget())
    ranges = {
        "engine_symbols": (16, 40),
        "engine_frames": (64, 160),
        "engine_batch": 1,
        "engine_fp16": True,
        "engine_workspace": 1.0,
    }
    texts, times = ["Yes.", "Hello there, how do you do?"], []
    [*expected] = FastSpeechSynthesizer(bundle, load_backend("torch:cpu", bundle)).speak_all(texts)
    for rebuild in (False, False, True):
        backend = load_backend("onnx:tensorrt", bundle, **ranges, rebuild_engines=rebuild)
        actual = FastSpeechSynthesizer(bundle, backend).speak_all(texts)
        assert mean_snr_db([speech.mels[0] for speech in expected], [speech.mels[0] for speech in actual]) >= 35
        files = sorted((tmp_path / "home" / "cache" / "engines").rglob("*.engine"))
        times.append([file.stat().st_mtime_ns for file in files])
    assert times[0]
    assert times[0] == times[1]
    assert all(new > old for old, new in zip(times[1], times[2], strict=True))
