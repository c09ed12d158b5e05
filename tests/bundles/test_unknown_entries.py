"""Entries of checkpoints that are not known: they are named, and left out only on request."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ane import cli
from ane.bundles import open_model
from tests.bundles.community_layouts import GPT
from tests.fastspeech_files import fastspeech_entries, write_fastspeech, write_hifigan

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
    "an extra layer": (lambda entries: entries | {"speaker_embedding.weight": torch.ones(2, 3)},
                       "speaker_embedding.weight; the model may sound different"),
    "averaged weights next to the last": (lambda entries: {"model": entries, "ema": entries}, "ema;"),
    "an adapter next to the network": (lambda entries: {"model": entries, "lora": {"a": torch.ones(2)}, "step": 3},
                                       "adapter (LoRA or similar)"),
}


def imported(source: Path, tmp_path: Path, *flags: object) -> tuple[int, Path]:
    folder = tmp_path / "imported"
    return cli.main(["import", str(source), "-o", str(folder), *map(str, flags)]), folder


@pytest.mark.parametrize(("change", "messages"), [*ADAPTERS.items(), *(
    (change, (message,)) for change, message in OTHERS.values())])
def test_unknown_entries_of_a_decoder_are_refused_by_name_and_left_out_on_request(
        change: Callable[[dict], Any], messages: tuple[str, ...], directory, original, tmp_path, capsys):
    entries = torch.load(directory / GPT, weights_only=True)
    torch.save(change(dict(entries)), source := tmp_path / "tuned_gpt.pth")
    status, folder = imported(source, tmp_path, "--base", original)
    line = capsys.readouterr().err
    assert status == 1
    assert all(message in line for message in (GPT, *messages, "--ignore-unknown"))
    assert not folder.exists()
    status, folder = imported(source, tmp_path, "--base", original, "--ignore-unknown")
    assert status == 0
    left_out = "Left out, although this version does not know what it is for: autoregressive.pth: "
    assert left_out in capsys.readouterr().out
    found, expected = (open_model(bundle=bundle).tensors("autoregressive") for bundle in (folder, original))
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_an_adapter_alone_is_named(suffix, directory, original, tmp_path, capsys):
    entries = torch.load(directory / GPT, weights_only=True)
    factors = {f"base_model.model.{key}": value
               for key, value in adapter(entries, LAYER, "lora_A.weight", "lora_B.weight").items()}
    source = tmp_path / f"adapter_model{suffix}"
    save_file(factors, source) if suffix == ".safetensors" else torch.save(factors, source)
    assert imported(source, tmp_path, "--base", original)[0] == 1
    line = capsys.readouterr().err
    assert "has the weights of an adapter (LoRA or similar) alone" in line
    assert "merge_and_unload()" in line


def test_unknown_entries_of_fastspeech_and_its_vocoder_are_refused(tmp_path, capsys):
    layer = "phoneme_side.layer_stack.0.slf_attn.linear"
    entries = fastspeech_entries()
    source = write_fastspeech(tmp_path / "lj.pt", entries | adapter(entries, layer, "lora_A", "lora_B"))
    assert imported(source, tmp_path)[0] == 1
    assert "lj.pt: phoneme_side.layer_stack.N.slf_attn.linear.lora_A" in capsys.readouterr().err
    assert imported(source, tmp_path, "--ignore-unknown")[0] == 0
    plain = write_fastspeech(tmp_path / "plain.pt", entries)
    vocoder = write_hifigan(tmp_path / "generator.pth")
    loaded = torch.load(vocoder, weights_only=True)
    loaded["generator"]["speaker.weight"] = torch.ones(3)
    torch.save(loaded | {"mpd": {"x": torch.ones(3)}, "optim_g": {"x": torch.ones(3)}, "steps": 3}, vocoder)
    capsys.readouterr()
    assert imported(plain, tmp_path, "--vocoder", vocoder, "--force")[0] == 1
    assert "generator.pth: speaker.weight; the model may" in capsys.readouterr().err


def test_a_model_without_entries_of_its_own_does_not_take_the_flag(tmp_path, capsys):
    (tmp_path / "kokoro.onnx").write_bytes(b"x")
    assert imported(tmp_path / "kokoro.onnx", tmp_path, "--ignore-unknown")[0] == 1
    assert "--ignore-unknown has no effect on Kokoro checkpoints" in capsys.readouterr().err
