"""Whisper computes what openai-whisper and transformers do with the same weights (tests/parity/families/whisper)."""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from torch import nn

from ane.backends import load_backend
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.decoder import TorchDecoder
from ane.backends.torch.static_decoder import StaticDecoder
from ane.models.whisper.checkpoints import openai_name
from ane.models.whisper.decoding import WindowDecoder, WindowText
from ane.models.whisper.features import RATE, WINDOW_SECONDS, log_mel, pad_or_cut, whisper_filters
from ane.models.whisper.networks import WhisperDecoder, WhisperDecoderConfig, WhisperEncoder, WhisperEncoderConfig
from ane.models.whisper.tokenizer_files import find_tokenizer
from ane.models.whisper.tokens import SpecialTokens, WhisperTokenizer
from tests.models.whisper.random_whisper import COVERED_TEXTS, RANKS
from tests.parity.whisper_golden import (
    FP32,
    check_logits,
    columns,
    decoding_options,
    dimensions,
    open_golden_whisper,
    uncached,
)


@pytest.fixture(scope="module")
def front_end(golden_whisper) -> dict[str, np.ndarray]:
    return load_file(golden_whisper / "frontend.safetensors")


@pytest.fixture(scope="module", params=["full", "short"])
def stages(request, golden_whisper) -> dict[str, np.ndarray]:
    """The golden tensors of one of the two models, and its name under the key "name"."""
    prefix = "" if request.param == "full" else "short_"
    return {**load_file(golden_whisper / f"{prefix}stages.safetensors"), "name": request.param}


@pytest.fixture(scope="module")
def networks(stages, whisper_facts, golden_whisper) -> tuple[WhisperEncoder, WhisperDecoder]:
    """Encoder and decoder with the golden weights, loaded strictly."""
    prefix = "" if stages["name"] == "full" else "short_"
    weights = {openai_name(key): value for key, value in
               load_tensors(golden_whisper / f"{prefix}weights.safetensors").items()}
    sizes = dimensions(whisper_facts, stages["name"])
    encoder = WhisperEncoder(WhisperEncoderConfig.from_upstream(sizes))
    decoder = WhisperDecoder(WhisperDecoderConfig.from_upstream(sizes))
    for name, network in (("encoder.", encoder), ("decoder.", decoder)):
        network.load_state_dict({key.removeprefix(name): value for key, value in weights.items()
                                 if key.startswith(name)}, strict=True)
        network.eval().requires_grad_(False)
    return encoder, decoder


@pytest.fixture(scope="module")
def backend(golden_whisper, whisper_facts, tmp_path_factory) -> TorchBackend:
    """The full model, opened as a Hugging Face folder."""
    return load_backend("torch:cpu", open_golden_whisper(golden_whisper, whisper_facts, "full",
                                                         tmp_path_factory.mktemp("whisper")))


def test_every_key_is_renamed_as_openai_names_it(whisper_facts):
    names = whisper_facts["openai_keys"]
    assert {key: openai_name(key) for key in names} == names
    assert {openai_name(key) for key in names.values()} == set(names.values())


@pytest.mark.parametrize("bands", [80, 128])
def test_filters(front_end, assert_close, bands):
    assert_close(whisper_filters(bands), front_end[f"filters_{bands}"], 1e-7)


@pytest.mark.parametrize("bands", [80, 128])
def test_log_mel(front_end, assert_close, bands):
    assert_close(log_mel(front_end["audio"], bands), front_end[f"mel_{bands}"], FP32)


def test_log_mel_of_padded_and_of_cut_audio(front_end, assert_close):
    audio = front_end["audio"]
    assert_close(log_mel(audio, 80, padding=800), front_end["mel_80_pad800"], FP32)
    long = np.resize(audio, 31 * 16000)
    assert_close(log_mel(pad_or_cut(long, WINDOW_SECONDS * RATE), 80)[:, -40:], front_end["trim_tail"], FP32)


def test_a_window_of_the_audio_is_the_encoders_input(front_end, golden_whisper, assert_close):
    mel = log_mel(pad_or_cut(front_end["audio"], WINDOW_SECONDS * RATE), 80)
    assert_close(mel[None], load_file(golden_whisper / "stages.safetensors")["encoder/mel"], FP32)


def captured(modules: dict[str, nn.Module], run: Callable[[], Any]) -> dict[str, np.ndarray]:
    """The outputs of ``modules`` while ``run`` runs."""
    found: dict[str, np.ndarray] = {}
    hooks = [module.register_forward_hook(lambda _, __, output, name=name: found.update({name: output.numpy()}))
             for name, module in modules.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def test_encoder_and_each_of_its_layers(networks, stages, assert_close):
    encoder, _ = networks
    modules: dict[str, nn.Module] = {"conv1": encoder.conv1, "conv2": encoder.conv2, "out": encoder}
    for index, block in enumerate(encoder.blocks):
        modules |= {f"layer{index}": block, f"layer{index}/self_attn_layer_norm": block.attn_ln,
                    f"layer{index}/self_attn": block.attn.out}
    found = captured(modules, lambda: encoder(torch.from_numpy(stages["encoder/mel"])))
    compared = [name for name in found if f"encoder/{name}" in stages]
    assert {"out", "layer0", "layer0/self_attn"} <= set(compared)
    for name in compared:
        assert_close(found[name], stages[f"encoder/{name}"], FP32, name)


def test_a_mel_of_another_length_is_refused(networks, stages):
    with pytest.raises(ValueError, match="mel must have"):
        networks[0](torch.from_numpy(stages["encoder/mel"])[..., :-1])


def test_decoder_and_each_of_its_layers(networks, stages, assert_close):
    _, decoder = networks
    modules: dict[str, nn.Module] = {"hidden": decoder}
    for index, block in enumerate(decoder.blocks):
        modules |= {f"layer{index}": block, f"layer{index}/self_attn": block.attn.out,
                    f"layer{index}/encoder_attn": block.cross_attn.out}
    found = captured(modules, lambda: uncached(decoder, stages["decoder/tokens"], stages["encoder/out"]))
    for name, output in found.items():
        assert_close(output, stages[f"decoder/{name}"], FP32, name)
    check_logits(decoder.logits(torch.from_numpy(found["hidden"])).numpy(), stages, "decoder", assert_close)


def cached_decoder(decoder: WhisperDecoder, states: np.ndarray, kind: type[TorchDecoder] = TorchDecoder,
                   lanes: int | None = None) -> TorchDecoder:
    """A decoder with the windows of ``states`` (B, N, D) as memories."""
    made = kind(decoder, lanes or len(states), decoder.config.n_text_ctx, torch.device("cpu"), torch.float32,
                len(states), decoder.config.n_text_ctx)
    for index, memory in enumerate(states):
        made.set_memory(memory, index)
    return made


@pytest.mark.parametrize("kind", [TorchDecoder, StaticDecoder])
def test_cache_and_steps(networks, stages, assert_close, kind):
    """Prefixes, then a token at a time in as many lanes as there are windows."""
    _, decoder = networks
    cache = cached_decoder(decoder, stages["encoder/out"], kind)
    start = stages["decoder/tokens"]
    for index, prefix in enumerate(columns(decoder, start)):
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
        for name, prefix, own, memory in (("key", cache.prefix_keys, cache.keys, cache.memory_keys),
                                          ("value", cache.prefix_values, cache.values, cache.memory_values)):
            both = torch.cat((prefix[layer, :, :, :length], own[layer, :, :, :steps]), dim=2)
            assert_close(both.numpy(), stages[f"steps/cache/self/{layer}/{name}"], FP32)
            assert_close(memory[layer].numpy(), stages[f"cache/cross/{layer}/{name}"], FP32)


def test_a_step_of_n_tokens_is_n_steps_is_no_cache(networks, stages, assert_close):
    _, decoder = networks
    tokens = np.concatenate((stages["decoder/tokens"], stages["steps/tokens"]), axis=1)
    expected = decoder.logits(uncached(decoder, tokens, stages["encoder/out"])[:, -1]).numpy()
    windows, count = np.arange(len(tokens)), tokens.shape[1]
    for sizes in ([count - 1], [1] * (count - 1), [2, 1, count - 4]):
        cache = cached_decoder(decoder, stages["encoder/out"])
        for index, prefix in enumerate(columns(decoder, tokens[:, :1])):
            cache.prefill(prefix, index)
        length = 0
        for size in sizes:
            new = columns(decoder, tokens[:, 1 + length:1 + length + size], 1 + length)
            _, logits = cache.step(new, np.full(len(tokens), length), 0, windows)
            length += size
        assert_close(logits, expected, FP32, str(sizes))


@pytest.mark.parametrize("kind", [TorchDecoder, StaticDecoder])
def test_lanes_do_not_change_a_result(networks, stages, assert_close, kind):
    """Lanes of several windows in any order give what each gives alone; a memory stays when its prefix changes."""
    _, decoder = networks
    states = np.concatenate((stages["encoder/out"], stages["encoder/out"][:, ::-1]))
    tokens = stages["decoder/tokens"][0]
    together = cached_decoder(decoder, states, kind, lanes=5)
    lanes = np.resize(np.arange(len(states))[::-1], 5)
    for index in range(len(states)):
        together.prefill(columns(decoder, tokens[None, :1])[0], index)
        together.prefill(columns(decoder, tokens[None, :2])[0], index)
    new = np.repeat(columns(decoder, tokens[None, 2:3], 2), 5, axis=0)
    hidden, logits = together.step(new, np.zeros(5, np.int64), 0, lanes)
    for lane, window in enumerate(lanes):
        alone = cached_decoder(decoder, states[window:window + 1], kind)
        alone.prefill(columns(decoder, tokens[None, :2])[0])
        expected = alone.step(new[:1], np.zeros(1, np.int64))
        assert_close(hidden[lane], expected[0][0], 1e-5)
        assert_close(logits[lane], expected[1][0], 1e-5)


@pytest.mark.parametrize("kind", [TorchDecoder, StaticDecoder])
def test_a_copied_lane_continues_as_the_lane_that_it_was_copied_from(networks, stages, assert_close, kind):
    _, decoder = networks
    cache = cached_decoder(decoder, stages["encoder/out"][:1], kind, lanes=3)
    tokens = np.array([[5, 6], [7, 8], [9, 4]])
    cache.prefill(columns(decoder, tokens[:1, :1])[0])
    cache.step(columns(decoder, tokens[:, :1], 1), np.zeros(3, np.int64))
    cache.step(columns(decoder, tokens[:, 1:], 2), np.ones(3, np.int64))
    new = np.repeat(columns(decoder, tokens[:1, :1], 3), 3, axis=0)
    before = cache.step(new, np.full(3, 2))[1]
    sources = np.array([2, 0, 2])
    cache.copy_lanes(sources, 2)
    assert_close(cache.step(new, np.full(3, 2))[1], before[sources], 1e-5)


def test_a_memory_of_another_length_is_refused(networks, stages):
    with pytest.raises(ValueError, match="got memory 0 of 3 positions"):
        cached_decoder(networks[1], stages["encoder/out"][:, :3])


def test_decoding(backend, whisper_facts, golden_whisper, assert_close):
    """Every case, one of them a beam search: tokens, average log-probability, no-speech probability."""
    mel = load_file(golden_whisper / "stages.safetensors")["encoder/mel"]
    decoder = WindowDecoder(backend, backend.model.config("decoder"), SpecialTokens.of(whisper_facts["n_vocab"]),
                            candidates=3)
    decoder.encode(mel)
    assert any("beam_size" in case["options"] for case in whisper_facts["decode"])
    for case in whisper_facts["decode"]:
        text = WindowText(tuple(case["options"].get("prompt", ())), tuple(case["options"].get("prefix", ())))
        [found] = decoder.decode([text], decoding_options(whisper_facts, case))
        assert list(found.tokens) == case["tokens"], case["name"]
        assert found.average_log_probability == pytest.approx(case["avg_logprob"], abs=FP32), case["name"]
        assert found.no_speech_probability == pytest.approx(case["no_speech_prob"], abs=1e-6), case["name"]


def test_language(backend, whisper_facts, golden_whisper):
    if "detect_language" not in whisper_facts:
        pytest.skip("this golden set states no detect_language: run without --families, or with a set that does")
    decoder = WindowDecoder(backend, backend.model.config("decoder"), SpecialTokens.of(whisper_facts["n_vocab"]))
    decoder.encode(load_file(golden_whisper / "stages.safetensors")["encoder/mel"])
    found = decoder.language_probabilities()
    assert next(iter(found)) == whisper_facts["detect_language"]["best"]
    assert found["en"] == pytest.approx(whisper_facts["detect_language"]["prob_en"], abs=1e-5)
    assert sum(found.values()) == pytest.approx(1)


def test_special_tokens(whisper_facts):
    special = SpecialTokens.of(whisper_facts["n_vocab"])
    names = {"eot": special.end, "sot": special.start, "translate": special.translate,
             "transcribe": special.transcribe, "sot_lm": special.language_model, "sot_prev": special.previous,
             "no_speech": special.no_speech, "no_timestamps": special.no_timestamps,
             "timestamp_begin": special.timestamps}
    assert names == whisper_facts["specials"]
    assert special.multilingual == whisper_facts["multilingual"]
    assert list(special.start_sequence("en")) == whisper_facts["sot_sequence"]
    assert list(special.start_sequence("en", timestamps=False)) == whisper_facts["sot_sequence_no_timestamps"]


def test_text_tokens(whisper_facts, tmp_path):
    """Samples of text that the part of the tokenizer in tests/models/whisper covers."""
    if not whisper_facts["multilingual"]:
        pytest.skip("the part of the tokenizer in the tests is multilingual: "
                    "run without --families, or with a multilingual set")
    shutil.copy(RANKS, tmp_path)
    tokenizer = WhisperTokenizer(find_tokenizer(tmp_path, multilingual=True), whisper_facts["specials"]["eot"])
    assert list(tokenizer.non_speech()) == whisper_facts["non_speech_tokens"]
    assert list(tokenizer.blank()) == [*whisper_facts["blank"], whisper_facts["specials"]["eot"]]
    for sample in whisper_facts["text"]:
        if sample["text"] in COVERED_TEXTS:
            assert tokenizer.encode(sample["text"]) == sample["ids"]
            assert tokenizer.decode(sample["ids"]) == sample["text"]
