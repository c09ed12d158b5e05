"""Compare Whisper with upstream: the decoder on every engine, how windows are decoded, and the times of words."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.numpy import load_file

from ane.backends import load_backend
from ane.backends.base import Backend
from ane.backends.decoding import Decoder
from ane.backends.mil import MilRuntime
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.static_decoder import StaticDecoder
from ane.bundles import Bundle
from ane.bundles.package_records import PackageFolder, read_section, section
from ane.models.whisper.decoding import WindowDecoder, WindowText
from ane.models.whisper.networks import WhisperDecoder
from ane.models.whisper.tokenizer_files import from_ranks
from ane.models.whisper.tokens import SpecialTokens, WhisperTokenizer
from ane.models.whisper.transcript import TranscriptSegment
from ane.models.whisper.words import AlignedWord, WordAligner, add_words
from ane.system.decibels import snr_db
from converters.coreml.coreml_package import CoreMLOptions, finish_package, load_reference
from converters.coreml.coreml_package import write_package as write_core_ml
from converters.onnx.onnx_package import OnnxOptions
from converters.onnx.onnx_package import write_package as write_onnx
from tests.arrays import assert_equal
from tests.backends.packaged.packages import InPlaceRuntime
from tests.models.whisper.random_whisper import RANKS
from tests.parity.whisper_golden import FP32, columns, decoding_options, open_golden_whisper, uncached

NETWORKS = ("encoder", "decoder")
PACKAGES = ("io", "state", "onnx")  # Core ML with each kind of kv-cache, and ONNX Runtime
# required dB of each engine. "static" is the path of torch on CUDA, and a state is fp16
SNR_DB = {"torch": 110.0, "static": 110.0, "io": 90.0, "state": 60.0, "onnx": 90.0}
PREFILL, LANES = 16, 4

MakeBackend = Callable[[str], Backend]


@pytest.fixture(scope="module")
def golden(golden_whisper) -> dict[str, np.ndarray]:
    return load_file(golden_whisper / "stages.safetensors")


class StaticBackend(TorchBackend):
    """The CPU with the decoder of CUDA."""

    def decoder(
        self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None
    ) -> StaticDecoder:
        return StaticDecoder(
            self.network("decoder"), lanes, capacity, torch.device("cpu"), torch.float32, prefixes, max_prefix_length
        )


@pytest.fixture(scope="module")
def model(golden_whisper, whisper_facts, tmp_path_factory) -> Bundle:
    return open_golden_whisper(golden_whisper, whisper_facts, tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def make_backend(model, shared) -> MakeBackend:
    """``make_backend(engine)``: the golden model in float32; its packages are converted once for all workers."""

    @cache
    def make(engine: str) -> Backend:
        if engine in ("torch", "static"):
            return (TorchBackend if engine == "torch" else StaticBackend)(model, "cpu", "fp32")
        target = "onnx" if engine == "onnx" else "coreml"
        folder = shared / f"whisper-{target}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                folder.mkdir()
                write_packages(model, target, folder)
        stated = json.loads((folder / "packages.json").read_text())
        packages = read_section(stated, str(folder), NETWORKS, target)
        reference = TorchBackend(model, "cpu", "fp32")
        found = PackageFolder(folder, packages)
        if engine == "onnx":
            return OnnxBackend(model, DEVICES["cpu"], reference, threads=1, unpublished=found)
        runtime = InPlaceRuntime() if engine.startswith("Core ML") else MilRuntime()
        return PackagedBackend(model, runtime, reference, cache=engine.removeprefix("Core ML "), unpublished=found)

    return make


def write_packages(model: Bundle, target: str, folder: Path) -> None:
    positions = model.config("decoder").n_text_ctx
    # each lane may have its own window, with its own prefix
    options = CoreMLOptions(
        "fp32", lanes=(1, LANES), buckets={"prefill": (PREFILL,), "step": (64 * LANES + 2 * positions,)}
    )
    if target == "onnx":
        packages = [write_onnx(model, network, OnnxOptions(), folder) for network in NETWORKS]
    else:
        written = [write_core_ml(model, network, options, folder) for network in NETWORKS]
        packages = [finish_package(folder, package, package.functions, [], "") for package in written]
    (folder / "packages.json").write_text(json.dumps({target: section(packages)}))


@pytest.fixture(scope="module")
def network(model) -> WhisperDecoder:
    """The decoder on torch, with the tables that backends look up in NumPy."""
    return load_reference(model, "decoder").float()


@pytest.fixture(params=SNR_DB)
def engine(request) -> str:
    return request.param


def make_decoder(backend: Backend, states: np.ndarray, lanes: int | None = None, capacity: int = 12) -> Decoder:
    """A decoder with the windows of ``states`` (B, N, D) as memories."""
    decoder = backend.decoder(lanes or len(states), capacity, len(states), PREFILL)
    for index, memory in enumerate(states):
        decoder.set_memory(memory, index)
    return decoder


@pytest.mark.parametrize("engine", ["io", "onnx"])
def test_the_encoder_gives_openais_states(make_backend, golden, engine):
    assert snr_db(golden["encoder/out"], make_backend(engine).run("encoder", mel=golden["encoder/mel"])) >= 90


def test_a_prefix_and_steps_give_openais_hidden_states_and_logits(make_backend, golden, network, engine):
    backend, tokens = make_backend(engine), golden["decoder/tokens"]
    decoder = make_decoder(backend, golden["encoder/out"])
    hidden, logits = decoder.prefill(columns(network, tokens)[0])
    assert snr_db(golden["decoder/hidden"][0, -1], hidden) >= SNR_DB[engine]
    assert snr_db(golden["decoder/logits_last"][0], logits) >= SNR_DB[engine]
    found = [
        decoder.step(columns(network, step[:, None], tokens.shape[1] + count), np.array([count]))
        for count, step in enumerate(golden["steps/tokens"].T)
    ]
    assert snr_db(golden["steps/hidden"], np.concatenate([hidden for hidden, _ in found], axis=1)) >= SNR_DB[engine]
    assert snr_db(golden["steps/logits_last"], found[-1][1]) >= SNR_DB[engine]


def test_a_step_of_n_tokens_is_n_steps_is_no_cache(make_backend, golden, network, engine):
    backend, states = make_backend(engine), golden["encoder/out"]
    tokens = np.concatenate((golden["decoder/tokens"], golden["steps/tokens"]), axis=1)
    with torch.inference_mode():
        expected = network.logits(uncached(network, tokens, states)[0, -1]).numpy()
    count = tokens.shape[1]
    assert snr_db(expected, make_decoder(backend, states).prefill(columns(network, tokens)[0])[1]) >= SNR_DB[engine]
    for sizes in ([count - 1], [1] * (count - 1), [2, 1, count - 4]):
        decoder, length = make_decoder(backend, states), 0
        decoder.prefill(columns(network, tokens[:, :1])[0])
        for size in sizes:
            new = columns(network, tokens[:, 1 + length : 1 + length + size], 1 + length)
            _, logits = decoder.step(new, np.array([length]))
            length += size
        assert snr_db(expected, logits[0]) >= SNR_DB[engine], sizes


def test_lanes_of_several_windows_give_what_each_gives_alone(make_backend, golden, network, engine):
    """With more lanes than a function has columns, and after the memory of a window was replaced."""
    backend, tokens, states = make_backend(engine), golden["decoder/tokens"], golden["encoder/out"]
    states = np.concatenate((states, states[:, ::-1], states[:, :, ::-1]))
    together = make_decoder(backend, states[[0, 1, 0]], lanes=5)
    together.set_memory(states[2], 2)
    for index in range(3):
        together.prefill(columns(network, tokens[:, :1])[0], index)
        together.prefill(columns(network, tokens[:, : 2 + index])[0], index)  # the encoder's output stays
    windows, lengths = np.array([2, 0, 1, 0, 2]), np.zeros(5, np.int64)
    new = np.repeat(columns(network, tokens[:, 2:4], 2), 5, axis=0)
    turns = [together.step(new[:, :1], lengths, 0, windows)]
    lengths[1:] = 1  # lane 0 starts again
    turns.append(together.step(new[:, 1:], lengths, 0, windows))
    for lane, window in enumerate(windows):
        alone = make_decoder(backend, states[window : window + 1])
        alone.prefill(columns(network, tokens[:, : 2 + window])[0])
        for turn, length in enumerate((0, lengths[lane])):
            expected = alone.step(new[:1, turn : turn + 1], np.array([length]))
            for whole, part in zip(expected, turns[turn], strict=True):
                assert snr_db(whole[0], part[lane]) >= SNR_DB[engine]


@pytest.mark.parametrize("engine", ["torch", "static", "Core ML io", "Core ML state", "onnx"])
def test_two_jobs_decoded_in_turn_give_what_each_gives_alone(make_backend, golden, network, engine):
    backend, tokens, states = make_backend(engine), golden["decoder/tokens"], golden["encoder/out"]

    def job(window: np.ndarray) -> Iterator[np.ndarray]:
        decoder = make_decoder(backend, window)
        yield decoder.prefill(columns(network, tokens[:, :2])[0])[1]
        for count, step in enumerate(golden["steps/tokens"].T):
            yield decoder.step(columns(network, step[:, None], 2 + count), np.array([count]))[1]

    windows = states, states[:, ::-1]
    alone = [list(job(window)) for window in windows]
    for expected, found in zip(alone, zip(*zip(*map(job, windows), strict=True), strict=True), strict=True):
        assert_equal(expected, found)


def test_a_memory_of_another_length_is_refused(make_backend, golden, engine):
    with pytest.raises(ValueError, match="got memory number 0 with 3 positions"):
        make_decoder(make_backend(engine), golden["encoder/out"][:, :3])


@pytest.mark.parametrize("engine", ["torch", *PACKAGES])
def test_decoding_gives_openais_tokens(listening, whisper_facts, engine):
    """With the true vocabulary and windows of 30 seconds; one case is a beam search, which packages cannot do."""
    on_torch = engine == "torch"
    decoder = listening(engine, 3 if on_torch else 1)
    cases = [case for case in whisper_facts["decode"] if on_torch or "beam_size" not in case["options"]]
    assert not on_torch or any("beam_size" in case["options"] for case in cases)
    for case in cases:
        text = WindowText(*(tuple(case["options"].get(part, ())) for part in ("prompt", "prefix")))
        found = decoder.decode(text, decoding_options(whisper_facts, case))
        assert list(found.tokens) == case["tokens"], case["name"]
        for probability, expected, allowed in (
            (found.average_log_probability, case["avg_logprob"], 1e-2 if engine == "state" else FP32),
            (found.no_speech_probability, case["no_speech_prob"], 1e-6 if on_torch else 1e-5),
        ):
            assert probability == pytest.approx(expected, abs=allowed), case["name"]


@pytest.fixture(scope="module")
def listening(make_backend, whisper_facts, golden):
    """``listening(engine, candidates)``: a decoder of windows that has heard the golden mel."""

    def make(engine: str, candidates: int = 1) -> WindowDecoder:
        backend, special = make_backend(engine), SpecialTokens.of(whisper_facts["n_vocab"])
        decoder = WindowDecoder(backend, backend.model.config("decoder"), special, candidates)
        decoder.set_states(backend.run("encoder", mel=golden["encoder/mel"]))
        return decoder

    return make


def test_language(listening, whisper_facts):
    if "detect_language" not in whisper_facts:
        pytest.skip("this golden set states no detect_language: run without --families, or with a set that does")
    found = listening("torch").language_probabilities()
    assert next(iter(found)) == whisper_facts["detect_language"]["best"]
    assert found["en"] == pytest.approx(whisper_facts["detect_language"]["prob_en"], abs=1e-5)
    assert sum(found.values()) == pytest.approx(1)


ROUNDED = 0.0101  # tolerance in seconds, because openai-whisper rounds some times to 0.01 s and others not


@pytest.fixture(scope="module")
def cases(golden_whisper) -> dict[str, Any]:
    if not (golden_whisper / "word_times.json").is_file():
        pytest.skip("this golden set has no word_times.json: run without --families")
    return json.loads((golden_whisper / "word_times.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def states(golden, make_backend) -> np.ndarray:
    return make_backend("torch").run("encoder", mel=golden["encoder/mel"])[0]


@pytest.fixture(scope="module", params=["fp32", "auto"])
def aligner(model, request) -> Callable[..., WordAligner]:
    """With heads (None: those of the upper half); in fp32 the linear layers are packed."""
    backend, special = load_backend("torch:cpu", model, request.param), SpecialTokens.of(51865)
    tokenizer = WhisperTokenizer(from_ranks(RANKS), special.end)

    def make(heads: list[list[int]] | None) -> WordAligner:
        config = replace(model.config("decoder"), alignment_heads=tuple(map(tuple, heads or ())))
        return WordAligner(backend, config, special, tokenizer)

    return make


def test_words_of_a_window(aligner, cases, states):
    for case in cases["alignment"]:
        found = aligner(case["heads"]).align(case["tokens"], states, case["frames"], case["language"])
        assert [[word.word, list(word.tokens)] for word in found] == [word[:2] for word in case["words"]]
        for word, (_, _, start, end, probability) in zip(found, case["words"], strict=True):
            assert (word.start, word.end) == pytest.approx((start, end), abs=1e-4)
            assert word.probability == pytest.approx(probability, rel=1e-3)


def test_punctuation_and_the_limits_of_words_and_segments(cases):
    """Made-up alignments with pauses, long words and punctuation."""
    for case in cases["segments"]:
        segments = [
            TranscriptSegment(start, end, "", tuple(tokens), 0, 0, 0, 0) for start, end, tokens in case["segments"]
        ]
        words = [AlignedWord(word, tuple(tokens), *rest) for word, tokens, *rest in case["words"]]
        found = add_words(segments, words, 50257, case["offset"], case["last_speech"])
        for segment, (start, end, expected) in zip(found, case["expected"], strict=True):
            assert (segment.start, segment.end) == pytest.approx((start, end), abs=ROUNDED)
            assert [word.word for word in segment.words] == [word for word, *_ in expected]
            for word, (_, *times) in zip(segment.words, expected, strict=True):
                assert (word.start, word.end) == pytest.approx(times, abs=ROUNDED)
