"""Test that Whisper computes what openai-whisper and transformers compute with the same weights."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from torch import nn

from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.static_decoder import StaticDecoder
from ane.models.whisper.checkpoints import openai_name
from ane.models.whisper.features import RATE, WINDOW_SECONDS, log_mel, pad_or_cut, whisper_filters
from ane.models.whisper.networks import WhisperDecoder, WhisperDecoderConfig, WhisperEncoder, WhisperEncoderConfig
from ane.models.whisper.tokenizer_files import find_tokenizer
from ane.models.whisper.tokens import SpecialTokens, WhisperTokenizer
from converters.proof.activations import hooked
from tests.models.whisper.random_whisper import COVERED_TEXTS, RANKS
from tests.parity.whisper_golden import FP32, PREFIXES, check_logits, columns, dimensions, uncached


@pytest.fixture(scope="module")
def front_end(golden_whisper) -> dict[str, np.ndarray]:
    return load_file(golden_whisper / "frontend.safetensors")


@pytest.fixture(scope="module", params=["full", "short"])
def name(request) -> str:
    """Of one of the two golden models."""
    return request.param


@pytest.fixture(scope="module")
def stages(name, golden_whisper) -> dict[str, np.ndarray]:
    return load_file(golden_whisper / f"{PREFIXES[name]}stages.safetensors")


@pytest.fixture(scope="module")
def networks(name, whisper_facts, golden_whisper) -> tuple[WhisperEncoder, WhisperDecoder]:
    """Encoder and decoder with the golden weights, loaded strictly."""
    weights = load_tensors(golden_whisper / f"{PREFIXES[name]}weights.safetensors")
    sizes = dimensions(whisper_facts, name)
    networks = {
        "encoder": WhisperEncoder(WhisperEncoderConfig.from_upstream(sizes)),
        "decoder": WhisperDecoder(WhisperDecoderConfig.from_upstream(sizes)),
    }
    nn.ModuleDict(networks).load_state_dict({openai_name(key): value for key, value in weights.items()})
    return tuple(network.eval().requires_grad_(False) for network in networks.values())


def test_every_key_is_renamed_as_openai_names_it(whisper_facts):
    names = whisper_facts["openai_keys"]
    assert {key: openai_name(key) for key in names} == names
    assert {openai_name(key) for key in names.values()} == set(names.values())


@pytest.mark.parametrize("bands", [80, 128])
def test_filters_and_log_mel(front_end, assert_close, bands):
    assert_close(whisper_filters(bands), front_end[f"filters_{bands}"], 1e-7)
    assert_close(log_mel(front_end["audio"], bands), front_end[f"mel_{bands}"], FP32)


def test_log_mel_of_padded_and_of_cut_audio(front_end, golden_whisper, assert_close):
    audio, window = front_end["audio"], WINDOW_SECONDS * RATE
    assert_close(log_mel(audio, 80, padding=800), front_end["mel_80_pad800"], FP32)
    assert_close(log_mel(pad_or_cut(np.resize(audio, 31 * RATE), window), 80)[:, -40:], front_end["trim_tail"], FP32)
    encoders_input = load_file(golden_whisper / "stages.safetensors")["encoder/mel"]
    assert_close(log_mel(pad_or_cut(audio, window), 80)[None], encoders_input, FP32)


def test_encoder_and_each_of_its_layers(networks, stages, assert_close):
    encoder, _ = networks
    modules: dict[str, nn.Module] = {"conv1": encoder.conv1, "conv2": encoder.conv2, "out": encoder}
    for index, block in enumerate(encoder.blocks):
        parts = {"": block, "/self_attn_layer_norm": block.attn_ln, "/self_attn": block.attn.out}
        modules |= {f"layer{index}{name}": module for name, module in parts.items()}
    found: dict[str, np.ndarray] = {}
    with hooked(modules, found.__setitem__):
        encoder(torch.from_numpy(stages["encoder/mel"]))
    compared = [name for name in found if f"encoder/{name}" in stages]
    assert {"out", "layer0", "layer0/self_attn"} <= set(compared)
    for name in compared:
        assert_close(found[name], stages[f"encoder/{name}"], FP32, name)
    with pytest.raises(ValueError, match="mel must have"):
        encoder(torch.from_numpy(stages["encoder/mel"])[..., :-1])


def test_decoder_and_each_of_its_layers(networks, stages, assert_close):
    _, decoder = networks
    modules: dict[str, nn.Module] = {"hidden": decoder}
    for index, block in enumerate(decoder.blocks):
        parts = {"": block, "/self_attn": block.attn.out, "/encoder_attn": block.cross_attn.out}
        modules |= {f"layer{index}{name}": module for name, module in parts.items()}
    found: dict[str, np.ndarray] = {}
    with hooked(modules, found.__setitem__):
        uncached(decoder, stages["decoder/tokens"], stages["encoder/out"])
    for name, output in found.items():
        assert_close(output, stages[f"decoder/{name}"], FP32, name)
    check_logits(decoder.logits(torch.from_numpy(found["hidden"])).numpy(), stages, "decoder", assert_close)


@pytest.mark.parametrize("kind", [TorchDecoder, StaticDecoder])
def test_cache_and_steps(networks, stages, assert_close, kind):
    """Prefixes, then a token at a time in as many lanes as there are windows."""
    (_, decoder), windows = networks, stages["encoder/out"]
    longest, start = decoder.config.n_text_ctx, stages["decoder/tokens"]
    cache = kind(decoder, len(windows), longest, torch.device("cpu"), torch.float32, len(windows), longest)
    for index, prefix in enumerate(columns(decoder, start)):
        cache.set_memory(windows[index], index)
        hidden, _ = cache.prefill(prefix, index)
        assert_close(hidden, stages["decoder/hidden"][index, -1], FP32)
    windows, length = np.arange(len(start)), start.shape[1]
    hidden, logits = [], []
    for step, tokens in enumerate(stages["steps/tokens"].T):
        new = columns(decoder, tokens[:, None], length + step)
        found = cache.step(new, np.full(len(start), step), 0, windows)
        hidden.append(found[0])
        logits.append(found[1][:, None])
    assert_close(np.concatenate(hidden, axis=1), stages["steps/hidden"], FP32)
    check_logits(np.concatenate(logits, axis=1), stages, "steps", assert_close)
    check_cache(cache, stages, length, assert_close)


def check_cache(cache: TorchDecoder, stages, length: int, assert_close) -> None:
    """The keys and values of prefixes, lanes and memories."""
    steps = stages["steps/tokens"].shape[1]
    for layer in range(cache.shape.layers):
        for name, prefix, own, memory in (
            ("key", cache.prefix_keys, cache.keys, cache.memory_keys),
            ("value", cache.prefix_values, cache.values, cache.memory_values),
        ):
            both = torch.cat((prefix[layer, :, :, :length], own[layer, :, :, :steps]), dim=2)
            assert_close(both.numpy(), stages[f"steps/cache/self/{layer}/{name}"], FP32)
            assert_close(memory[layer].numpy(), stages[f"cache/cross/{layer}/{name}"], FP32)


def test_special_tokens(whisper_facts):
    special = SpecialTokens.of(whisper_facts["n_vocab"])
    names = {
        "eot": special.end,
        "sot": special.start,
        "translate": special.translate,
        "transcribe": special.transcribe,
        "sot_lm": special.language_model,
        "sot_prev": special.previous,
        "no_speech": special.no_speech,
        "no_timestamps": special.no_timestamps,
        "timestamp_begin": special.timestamps,
    }
    assert names == whisper_facts["specials"]
    assert special.multilingual == whisper_facts["multilingual"]
    assert list(special.start_sequence("en")) == whisper_facts["sot_sequence"]
    assert list(special.start_sequence("en", timestamps=False)) == whisper_facts["sot_sequence_no_timestamps"]


def test_text_tokens(whisper_facts, tmp_path):
    """Samples of text that the part of the tokenizer in tests/models/whisper covers."""
    if not whisper_facts["multilingual"]:
        pytest.skip(
            "the part of the tokenizer in the tests is multilingual: run without --families, or with a multilingual set"
        )
    shutil.copy(RANKS, tmp_path)
    tokenizer = WhisperTokenizer(find_tokenizer(tmp_path, multilingual=True), whisper_facts["specials"]["eot"])
    assert list(tokenizer.non_speech()) == whisper_facts["non_speech_tokens"]
    assert list(tokenizer.blank()) == [*whisper_facts["blank"], whisper_facts["specials"]["eot"]]
    for sample in whisper_facts["text"]:
        if sample["text"] in COVERED_TEXTS:
            assert tokenizer.encode(sample["text"]) == sample["ids"]
            assert tokenizer.decode(sample["ids"]) == sample["text"]
