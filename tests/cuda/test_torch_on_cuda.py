"""Test that torch on an NVIDIA GPU gives the CPU's results, and replays decoder steps as CUDA graphs.

Run these tests on a machine with an NVIDIA GPU and a torch built for it, in a checkout with the test extra installed::

    pytest tests/cuda -rA

tests/backends/torch/test_static_decoder.py tests the static step on any machine, also recorded and replayed.
"""

import gc
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.static_decoder import CudaGraphRunner, StaticDecoder, run_eagerly
from ane.bundles import Bundle, open_model
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.family import STAGES
from ane.models.tortoise.sampling import InverseCdfSampler, Randomness, Sampling
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from converters.proof.parity import mean_snr_db
from tests.backends.decoder_steps import columns
from tests.decoding import ChunkPrompt, decode
from tests.random_model import random_model

pytestmark = pytest.mark.usefixtures("torch_on_cuda")

DEVICE = "cuda"
LANES, CAPACITY = 4, 40
SIZES = {"B": 2, "L": 40, "T": 20, "S": 30, "L+10": 50, "samples": 60000}  # length of each named dimension

# Largest errors, as a share of the largest value. The GPU sums in another order than the CPU. By default, torch's
# convolutions on CUDA use TF32, which would change these stages by up to 0.0023. Ours do not use TF32.
FP32, EXACT = 1e-3, 1e-4
ROUNDING = {"fp32": 0.01, "fp16": 0.02, "bf16": 0.1}  # without conditioning, random weights amplify rounding
# required dB of a vocoder's waveform, compared with the CPU's. With TF32, HiFi-GAN would reach 44
VOCODER_SNR = 60


@pytest.fixture(scope="module")
def model(golden_model) -> Bundle:
    """A model with random weights for every network."""
    return golden_model


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def precisions() -> list[str]:
    native = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return ["fp32", "fp16", *(["bf16"] if native else [])]


def random_inputs(stage: str, model: Bundle) -> dict[str, np.ndarray]:
    """Random inputs of a stage."""
    rng = np.random.default_rng(0)
    widths = {"D": model.widths[0], "C": model.widths[1]}
    if stage == "univnet":
        widths["Z"] = model.config("univnet").noise_dim

    def draw(tensor):
        shape = [size if isinstance(size, int) else (SIZES | widths)[size] for size in tensor.shape]
        if tensor.dtype == "int64":
            return rng.integers(1, 30, shape)
        return rng.standard_normal(shape, dtype=np.float32)

    return {name: draw(tensor) for name, tensor in STAGES[stage].inputs.items()}


def assert_near(expected: np.ndarray, actual: np.ndarray, share: float) -> None:
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=share * np.abs(expected).max())


def decode_schedule(decoder, turns: int = 30) -> list[np.ndarray]:
    """Run four lanes with two prefixes through three buckets: with refills, steps of some lanes, a replaced prefix, and
    at the end a step of several columns."""
    outputs = [*decoder.prefill(columns(0, 20), 0), *decoder.prefill(columns(1, 7), 1)]
    length, prefix = np.zeros(LANES, dtype=np.int64), np.array([0, 1, 1, 0])
    for turn in range(turns):
        if turn == 12:
            length[2], prefix[2] = 0, 0
        if turn == 18:
            length[1] = 0
            outputs += decoder.prefill(columns(2, 15), 1)
        low, high = ((0, LANES), (1, 3))[turn % 5 == 4]
        outputs += decoder.step(columns(3 + turn, high - low, 1), length[low:high], low, prefix[low:high])
        length[low:high] += 1
    return [*outputs, *decoder.step(columns(99, 1, 7), length[3:4], 3, prefix[3:4])]


def run_on_both(model: Bundle, stage: str, precision: str = "fp32") -> tuple[np.ndarray, np.ndarray]:
    """Outputs of a stage on the CPU in float32 and on CUDA, in a program with torch's default, TF32."""
    if STAGES[stage].network not in model.networks:
        pytest.skip(
            f"this set of golden vectors has no {STAGES[stage].network}; without --golden: pytest tests/cuda -rA"
        )
    inputs = random_inputs(stage, model)
    assert torch.backends.cudnn.allow_tf32
    return (
        TorchBackend(model, "cpu", "fp32").run(stage, **inputs),
        TorchBackend(model, DEVICE, precision).run(stage, **inputs),
    )


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_equals_the_cpu(model, stage):
    assert_near(*run_on_both(model, stage), FP32)


@pytest.mark.parametrize("precision", precisions())
@pytest.mark.parametrize("vocoder", ["univnet", "hifigan"])
def test_vocoders_are_float32_in_every_precision(model, vocoder, precision):
    expected, actual = run_on_both(model, vocoder, precision)
    assert mean_snr_db([expected], [actual]) >= VOCODER_SNR


@pytest.mark.parametrize("precision", precisions())
@pytest.mark.parametrize("guided", [False, True])
def test_denoising_one_or_several_utterances_equals_the_cpu(model, precision, guided):
    latents = [columns(count, 1, count, width=model.config("diffusion").in_latent_channels) for count in (9, 4)]
    voice, frames = columns(3, 1, width=model.widths[1]), [40, 18]
    x = [columns(4, 1, 100, width=length) for length in frames]
    exact, backend = TorchBackend(model, "cpu", "fp32"), TorchBackend(model, DEVICE, precision)
    together = backend.denoiser(latents, voice, frames)(x, 1500, guided)
    for rows, length, noisy, outputs in zip(latents, frames, x, together, strict=True):
        [expected], [alone] = (
            each.denoiser([rows], voice, [length])([noisy], 1500, guided) for each in (exact, backend)
        )
        assert_near(expected, alone, ROUNDING[precision])
        assert_near(expected, outputs, ROUNDING[precision])


def test_a_replayed_step_launches_one_graph_and_no_kernel():
    decoder = TorchBackend(random_model(), DEVICE, "fp32").decoder(LANES, CAPACITY)
    decoder.prefill(columns(0, 9))
    for turn in range(2):
        decoder.step(columns(1, LANES, 1), np.full(LANES, turn))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        decoder.step(columns(1, LANES, 1), np.full(LANES, 2))
        torch.cuda.synchronize()
    calls = Counter(event.name for event in found.events())
    assert calls["cudaGraphLaunch"] == 1
    assert not any(name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for name in calls)


@pytest.mark.parametrize("precision", precisions())
def test_the_decoder_equals_the_cpu(precision):
    both = (
        TorchBackend(random_model(), device, chosen).decoder(LANES, CAPACITY, 2, 20)
        for device, chosen in (("cpu", "fp32"), (DEVICE, precision))
    )
    share = EXACT if precision == "fp32" else ROUNDING[precision]
    for expected, actual in zip(*map(decode_schedule, both), strict=True):
        assert_near(expected, actual, share)


@pytest.mark.parametrize("precision", precisions())
def test_replayed_graphs_equal_the_eager_static_step_and_the_plain_decoder(precision):
    backend = TorchBackend(random_model(), DEVICE, precision)
    network, dtype = backend.network("autoregressive"), backend.precision("autoregressive")
    graphs = CudaGraphRunner(torch.cuda.Stream(backend.device))
    sizes = (LANES, CAPACITY, backend.device, dtype, 2, 20)
    replayed = decode_schedule(StaticDecoder(network, *sizes, run=graphs, smallest=8))
    assert sorted(bucket for _, bucket in graphs.graphs) == [8, 16, 32]
    share = EXACT if precision == "fp32" else ROUNDING[precision]
    for other in (StaticDecoder(network, *sizes, run=run_eagerly, smallest=8), TorchDecoder(network, *sizes)):
        for expected, actual in zip(decode_schedule(other), replayed, strict=True):
            assert_near(expected, actual, share)


def test_two_decoders_in_turn_are_independent():
    backend = TorchBackend(random_model(), DEVICE, "fp32")
    expected = {seed: [] for seed in (0, 1)}
    for seed, steps in expected.items():
        decoder = backend.decoder(2, CAPACITY)
        decoder.prefill(columns(seed, 9))
        steps += [decoder.step(columns(10 * turn + seed, 2, 1), np.full(2, turn)) for turn in range(12)]
    both = [backend.decoder(2, CAPACITY) for _ in expected]
    for seed, decoder in enumerate(both):
        decoder.prefill(columns(seed, 9))
    for turn in range(12):
        for seed, decoder in enumerate(both):
            outputs = decoder.step(columns(10 * turn + seed, 2, 1), np.full(2, turn))
            for one, other in zip(expected[seed][turn], outputs, strict=True):
                assert_near(one, other, EXACT)


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_the_same_seed_gives_the_same_codes_as_on_the_cpu(lanes):
    model = open_model("demo")
    config = model.config("autoregressive")

    def sample(device: str) -> list[list[int]]:
        chunks = [
            ChunkPrompt(
                columns(index, 1, width=config.model_dim),
                text_tokens(list(range(3, 12 + 5 * index)), config),
                [InverseCdfSampler(Randomness(7).candidate(index, each)) for each in range(3)],
            )
            for index in range(3)
        ]
        return [
            one.codes
            for row in decode(TorchBackend(model, device, "fp32"), chunks, config, Sampling(max_codes=100), lanes)
            for one in row
        ]

    assert sample(DEVICE) == sample("cpu")


def test_each_sentence_has_the_codes_of_the_cpu():
    """The second sentence uses networks that were kept."""
    model = open_model("demo")
    settings = TortoiseSettings.of("fastest", model.settings)
    on_cpu, on_cuda = (TortoiseSpeaker(model, TorchBackend(model, device, "fp32")) for device in ("cpu", DEVICE))
    for text in ("Hello there.", "And this is another sentence, which is longer.", "Hello there."):
        expected, actual = (each.speak(text, seed=1, settings=settings) for each in (on_cpu, on_cuda))
        assert actual.codes == expected.codes, text
        assert np.isfinite(actual.audio).all()
        # rounding can move the ends, because trimming compares a level with a threshold
        assert abs(len(actual.audio) - len(expected.audio)) < 2400


@pytest.mark.parametrize("precision", [each for each in precisions() if each != "fp32"])
def test_half_precision_speaks(precision):
    model = open_model("demo")
    synthesizer = TortoiseSpeaker(model, TorchBackend(model, DEVICE, precision))
    for _ in range(2):
        spoken = synthesizer.speak("Hello there.", seed=1, settings=TortoiseSettings.of("fastest", model.settings))
        assert np.isfinite(spoken.audio).all()
        assert np.abs(spoken.audio).max() > 0.01


def test_memory_is_freed():
    backend = TorchBackend(random_model(), DEVICE, "fp32", keep=False)

    def memory_use() -> tuple[int, int, int]:
        """Bytes of tensors with a decoder; bytes of tensors, and bytes that torch reserves, after it is deleted."""
        decoder = backend.decoder(LANES, CAPACITY, 2, 20)
        decode_schedule(decoder)
        used = torch.cuda.memory_allocated()
        del decoder
        gc.collect()
        backend.release()
        return used, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    memory_use()  # measured now, because cuBLAS keeps its workspaces
    used, after, reserved = memory_use()
    assert after < used
    assert [memory_use() for _ in range(3)] == [(used, after, reserved)] * 3
