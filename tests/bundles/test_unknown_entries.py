"""Test that an error names unknown tensors of a checkpoint, which are left out only on request."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ane.bundles import Bundle
from ane.bundles.contents import Contents
from tests.bundles.community_layouts import GPT
from tests.edits import edit_checkpoint
from tests.fastspeech_files import fastspeech_entries, write_fastspeech, write_hifigan
from tests.imported import contents_of
from tests.models.whisper.random_whisper import write_openai
from tests.refusals import refusal_of

RANK = 2
LAYER = "gpt.h.0.attn.c_attn"


def adapter(entries: Mapping[str, torch.Tensor], layer: str, a: str, b: str) -> dict[str, torch.Tensor]:
    """The two factors of an adapter of rank 2, under those names."""
    rows, columns = entries[f"{layer}.weight"].shape[:2]
    return {f"{layer}.{a}": torch.ones(RANK, columns), f"{layer}.{b}": torch.ones(rows, RANK)}


def loralib(entries: dict) -> dict:
    return entries | adapter(entries, LAYER, "lora_A", "lora_B")


def peft(entries: dict) -> dict:
    """A whole model that PEFT has wrapped: the layer of an adapter has its own weights in base_layer."""
    added = adapter(entries, LAYER, "lora_A.default.weight", "lora_B.default.weight")
    renamed = {key.replace(f"{LAYER}.", f"{LAYER}.base_layer."): value for key, value in entries.items()}
    return {f"base_model.model.{key}": value for key, value in (renamed | added).items()}


def kohya(entries: dict) -> dict:
    return entries | {"lora_unet_gpt_h_0.lora_down.weight": torch.ones(2, 3), "lora_unet_gpt_h_0.alpha": torch.ones(1)}


ADAPTERS = {
    loralib: ("gpt.h.N.attn.c_attn.lora_A", "adapter (LoRA or similar)"),
    peft: ("gpt.h.N.attn.c_attn.lora_A.default.weight", "merge_and_unload()"),
    kohya: ("lora_unet_gpt_h_0.lora_down.weight", "adapter (LoRA or similar)"),
}
OTHERS = {
    "an extra layer": (
        lambda entries: entries | {"speaker_embedding.weight": torch.ones(2, 3)},
        "speaker_embedding.weight. The model may sound different",
    ),
    "an adapter next to the network": (
        lambda entries: {"model": entries, "lora": {"a": torch.ones(2)}, "step": 3},
        "adapter (LoRA or similar)",
    ),
    "an adapter whose name begins as an optimiser's": (
        lambda entries: {"model": entries, "optimized_lora": {"a": torch.ones(2)}},
        "optimized_lora.a. ",
    ),
    "a scaler that no trainer has": (
        lambda entries: {"model": entries, "ema_scaler": {"gain": torch.ones(2)}},
        "ema_scaler. ",
    ),
    "an adapter within an optimiser": (
        lambda entries: {"model": entries, "optimizer": {"layers": [adapter(entries, LAYER, "lora_A", "lora_B")]}},
        f"optimizer.layers[0].{LAYER.replace('.0.', '.N.')}.lora_A",
    ),
    "an adapter in upstream's copy of the decoder": (
        lambda entries: entries | {f"inference_model.{LAYER}.lora_A": torch.ones(2, 3)},
        "inference_model.gpt.h.N.attn.c_attn.lora_A",
    ),
    "more layers in upstream's copy of the decoder": (
        lambda entries: entries | {"inference_model.transformer.h.99.ln_1.weight": torch.ones(3)},
        "inference_model.transformer.h.N.ln_1.weight. The model may",
    ),
}


@pytest.fixture
def accepted(tmp_path, succeed) -> Callable[..., str]:
    """``accepted(source, *flags)``: what `ane import` prints when it makes the bundle ``tmp_path``/imported."""

    return lambda source, *flags: succeed("import", source, "-o", tmp_path / "imported", *flags)


@pytest.fixture
def refused(tmp_path, complain) -> Callable[..., str]:
    """``refused(source, *flags)``: what `ane import` complains about, without making that bundle."""

    return lambda source, *flags: complain("import", source, "-o", tmp_path / "imported", *flags)


def without_encoder(entries: dict) -> dict:
    """The decoder alone, as trainers save it that do not train the encoder of a voice's clips."""
    return {key: value for key, value in entries.items() if not key.startswith("conditioning_encoder.")}


@pytest.fixture(scope="module")
def entries(golden_checkpoints: Path) -> dict:
    """The official decoder with its encoder."""
    return torch.load(golden_checkpoints / GPT, weights_only=True)


@pytest.fixture
def read(original: Path, tmp_path: Path) -> Callable[..., Contents]:
    """``read(content, **options)``: the model whose decoder is in a file with that content, the rest in a base."""

    def read(content: dict, **options: bool) -> Contents:
        torch.save(content, source := tmp_path / "tuned_gpt.pth")
        return contents_of(source, base=str(original), **options)

    return read


def assert_weights(model: Contents, original: Path, *networks: str) -> None:
    """These networks of the model are those of the original bundle."""
    for network in networks:
        found, expected = model.tensors(network), Bundle(original).tensors(network)
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    "change",
    [dict, lambda entries: {"ema": entries}, lambda entries: {f"module.{key}": entries[key] for key in entries}],
)
def test_a_base_provides_the_encoder_that_a_decoder_lacks(change, entries, original, read):
    model = read(change(without_encoder(entries)))
    assert "The checkpoint lacks conditioning_encoder, so this model gets the one of tiny" in model.notes
    assert_weights(model, original, "autoregressive", "conditioning_encoder")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mel_head.bias", torch.ones(3), "mel_head.bias"),
        ("conditioning_encoder.init.weight", torch.ones(3), "conditioning_encoder."),
    ],
)
def test_a_fault_of_a_decoder_without_its_encoder_is_named(key, value, message, entries, read):
    assert message in refusal_of(read, without_encoder(entries) | {key: value})


def test_a_decoder_with_nan_is_refused_when_it_is_written(entries, original, tmp_path, refused):
    torch.save(without_encoder(entries) | {"mel_head.bias": entries["mel_head.bias"] * torch.nan}, tmp_path / "nan.pth")
    assert "mel_head.bias" in refused(tmp_path / "nan.pth", "--base", original)


def test_a_folder_whose_decoder_lacks_its_encoder_needs_a_base(directory, entries, refused):
    torch.save(without_encoder(entries), directory / GPT)
    line = " ".join(refused(directory).split())
    assert "the file lacks the whole conditioning_encoder: name a bundle that has it, with" in line


UNKNOWN = [*ADAPTERS.items(), *((change, (message,)) for change, message in OTHERS.values())]


@pytest.mark.parametrize(
    ("change", "messages", "with_encoder"),
    [*((*case, True) for case in UNKNOWN), *((*case, False) for case in UNKNOWN[: len(ADAPTERS) + 1])],
)
def test_unknown_entries_of_a_decoder_are_refused_by_name_and_left_out_on_request(
    change, messages, with_encoder, entries, original, read
):
    content = change(dict(entries if with_encoder else without_encoder(entries)))
    line = refusal_of(read, content)
    assert all(message in line for message in (GPT, *messages, "ignore_unknown=True"))
    model = read(content, ignore_unknown=True)
    assert model.surplus.unknown.keys() == {GPT}
    assert_weights(model, original, "autoregressive")


def with_upstreams_copy(entries: dict) -> dict:
    """The state dict after upstream's ``post_init_gpt2_config``, whose copy shares the weights of the decoder."""
    copied = {
        f"inference_model.transformer.{key.removeprefix('gpt.')}": value
        for key, value in entries.items()
        if key.startswith("gpt.")
    }
    for ours, theirs in (
        ("mel_pos_embedding", "text_pos_embedding"),
        ("mel_embedding", "embeddings"),
        ("final_norm", "lm_head.0"),
        ("mel_head", "lm_head.1"),
    ):
        copied |= {
            key.replace(ours, f"inference_model.{theirs}", 1): value
            for key, value in entries.items()
            if key.startswith(f"{ours}.")
        }
    wte = entries["mel_embedding.weight"]
    buffers = {"attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8), "attn.masked_bias": torch.tensor(-1e4)}
    buffers = {f"inference_model.transformer.h.0.{name}": value for name, value in buffers.items()}
    return entries | copied | buffers | {"gpt.wte.weight": wte, "inference_model.transformer.wte.weight": wte}


TRAINERS = (
    "optimizer",
    "optimizers",
    "optimizer_states",
    "optimizer_g",
    "optim",
    "optim_d",
    "scaler",
    "grad_scaler",
    "lr_scheduler",
    "lr_schedulers",
    "scheduler",
    "rng_state",
    "rng_states",
    "cuda_rng_state",
    "loops",
    "callbacks",
    "discriminator",
    "model_d",
    "mpd",
    "msd",
    "mrd",
    "epoch",
    "step",
    "global_step",
)


def test_the_state_of_a_trainer_and_upstreams_copy_of_the_decoder_are_left_out_without_a_question(
    entries, original, tmp_path, accepted
):
    state = {name: {"state": {0: {"exp_avg": torch.ones(2)}}} for name in TRAINERS}
    content = {"model": with_upstreams_copy(entries), **state, "args": {"lora_rank": 8}}
    torch.save(content, source := tmp_path / "tuned_gpt.pth")
    printed = accepted(source, "--base", original)
    assert "Left out, because speech does not need it: autoregressive.pth: optimizer, " in printed


def adapter_files(entries: dict, folder: Path) -> dict[str, str]:
    """Write adapters next to a model: the name of each file, and its tensors in messages."""
    factors = adapter(entries, LAYER, "lora_A.weight", "lora_B.weight")
    (folder / "models").mkdir(exist_ok=True)
    wrapped = {f"base_model.model.{key}": value for key, value in factors.items()}
    save_file(wrapped, folder / "adapter_model.safetensors")
    torch.save({"a": torch.ones(2)}, folder / "lora.pth")  # only its name shows that it is a LoRA
    torch.save({"weights": factors}, folder / "models" / "style.PT")  # only its keys show that it is a LoRA
    (folder / "my-LoRA.bin").write_bytes(b"no checkpoint")
    lora = "gpt.h.N.attn.c_attn.lora_A.weight"
    return {
        "adapter_model.safetensors": f"base_model.model.{lora}",
        "lora.pth": "a",
        "models/style.PT": lora,
        "my-LoRA.bin": "a file that cannot be read",
    }


def test_the_files_of_adapters_next_to_official_files_are_refused_by_name(directory, entries, accepted, refused):
    expected = adapter_files(entries, directory)
    line = refused(directory)
    assert all(f"{file}: " in line and key in line for file, key in expected.items())
    assert all(text in line for text in ("adapter (LoRA or similar)", "merge_and_unload()", "--ignore-unknown"))
    out = accepted(directory, "--ignore-unknown")
    assert "Left out, although this version does not know its purpose: " in out
    assert all(f"{file}: " in out for file in expected)


def test_the_files_of_weights_that_are_not_read_are_named(directory, accepted):
    (directory / "models").mkdir()
    torch.save({"x.weight": torch.ones(2)}, directory / "classifier.pth")
    torch.save({"x.weight": torch.ones(2)}, directory / "models" / "other.ckpt")
    (directory / "training_args.bin").write_bytes(b"no checkpoint")
    [line] = [line for line in accepted(directory).splitlines() if line.startswith("Not read")]
    names = line.removeprefix("Not read, because other files have the networks: ").split(", ")
    assert {"classifier.pth", "models/other.ckpt", "training_args.bin"} <= set(names)
    assert not {GPT, "diffusion_decoder.pth", "clvp2.pth", "vocoder.pth", "mel_norms.pth"} & set(names)


def test_an_adapter_in_a_file_of_whisper_or_next_to_it_is_refused(tmp_path, accepted, refused):
    (tmp_path / "whisper").mkdir()
    source = write_openai(tmp_path / "whisper")
    content = torch.load(source, weights_only=True)
    torch.save(content | {"lora": {"a": torch.ones(2)}}, source)
    assert f"{source.name}: lora.a. Either merge" in refused(source)
    torch.save(content, source)
    save_file({"x.lora_A.weight": torch.ones(2)}, tmp_path / "whisper" / "adapter_model.safetensors")
    assert "adapter_model.safetensors: x.lora_A.weight. Either merge" in refused(source.parent)
    accepted(source.parent, "--ignore-unknown")


@pytest.mark.parametrize("options", [{}, {"ignore_unknown": True}])
def test_averaged_weights_are_chosen_and_the_others_named(options, entries, original, read):
    model = read({"model": {key: 0 * value for key, value in entries.items()}, "ema": entries}, **options)
    assert any("in ema and model: this model gets the averaged weights (ema)" in note for note in model.notes)
    assert_weights(model, original, "autoregressive")


@pytest.mark.parametrize("names", [("model", "state_dict"), ("ema", "model_ema", "model")])
def test_a_file_with_several_state_dicts_of_equal_rank_is_refused(names, entries, read):
    line = refusal_of(read, dict.fromkeys(names, entries), ignore_unknown=True)
    assert all(name in line for name in ("has several state dicts", *names, "torch.save(content[NAME], FILE)"))


def test_averaged_weights_of_the_other_models_are_chosen(tmp_path, accepted):
    entries, zeros = fastspeech_entries(), {key: 0 * value for key, value in fastspeech_entries().items()}
    torch.save({"model": zeros, "ema": entries}, source := tmp_path / "lj.pt")
    vocoder = write_hifigan(tmp_path / "generator.pth")
    edit_checkpoint(vocoder, lambda loaded: loaded.update(ema=loaded["generator"]))
    printed = " ".join(accepted(source, "--vocoder", vocoder).split())
    assert all(f"in ema and {name}: this model gets the averaged" in printed for name in ("model", "generator"))
    whisper = write_openai(tmp_path / "whisper")
    edit_checkpoint(whisper, lambda loaded: loaded.update(ema=loaded["model_state_dict"]))
    assert "in ema and model_state_dict: this" in " ".join(accepted(whisper, "--force").split())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_an_adapter_alone_is_named(suffix, entries, original, tmp_path):
    factors = adapter(entries, LAYER, "lora_A.weight", "lora_B.weight")
    factors = {f"base_model.model.{key}": value for key, value in factors.items()}
    source = tmp_path / f"adapter_model{suffix}"
    save_file(factors, source) if suffix == ".safetensors" else torch.save(factors, source)
    line = refusal_of(contents_of, source, base=str(original))
    assert "has only the weights of an adapter (LoRA or similar)" in line
    assert "merge_and_unload()" in line


def test_unknown_entries_of_fastspeech_and_its_vocoder_are_refused(tmp_path, accepted, refused):
    layer = "phoneme_side.layer_stack.0.slf_attn.linear"
    entries = fastspeech_entries()
    source = write_fastspeech(tmp_path / "lj.pt", entries | adapter(entries, layer, "lora_A", "lora_B"))
    assert "lj.pt: phoneme_side.layer_stack.N.slf_attn.linear.lora_A" in refused(source)
    accepted(source, "--ignore-unknown")
    plain = write_fastspeech(tmp_path / "plain.pt", entries)
    vocoder = write_hifigan(tmp_path / "generator.pth")
    beside = {"mpd": {"x": torch.ones(3)}, "optim_g": {"x": torch.ones(3)}, "steps": 3}
    edit_checkpoint(vocoder, lambda loaded: loaded["generator"].update({"speaker.weight": torch.ones(3)}))
    edit_checkpoint(vocoder, lambda loaded: loaded.update(beside))
    assert "generator.pth: speaker.weight. The model may" in refused(plain, "--vocoder", vocoder, "--force")
