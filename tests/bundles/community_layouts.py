"""Make Tortoise checkpoints in the layouts of its community, from the tensors of the official checkpoints.

Sources: DL-Art-School and ai-voice-cloning (fine-tunes with *.state files next to them), torch's DataParallel, the
folder of coqui-ai/TTS, and transformers' converters (models/clvp/convert_clvp_to_hf.py and
models/univnet/convert_univnet.py of version 4.45). The converters rename upstream's keys to theirs, and this module
repeats their steps in the same order.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ane.models.tortoise.checkpoints import packaged_file

Files = dict[str, dict[str, Any]]  # official file name → tensors by key
GPT, DIFFUSION, CLVP, UNIVNET, HIFIGAN = (
    "autoregressive.pth",
    "diffusion_decoder.pth",
    "clvp2.pth",
    "vocoder.pth",
    "hifidecoder.pth",
)
TOKENIZER = packaged_file("tokenizer.json")
HEADS = 4  # attention heads of the decoder in the golden set


@dataclass(frozen=True)
class CommunityFile:
    """One kind of file.

    Attributes:
        write: writes it into an empty folder; returns SOURCE of `ane import`.
        change: makes the weights that are written from those of the official files; None: they are written as they are.
        based: whether the other networks come from --base.
    """

    write: Callable[[Path, Files], Path]
    change: Callable[[Files], Files] | None = None
    based: bool = True


def write_files(folder: Path, contents: dict[str, Any]) -> Path:
    """Write each content in the form that the suffix of its name states."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        elif path.suffix == ".safetensors":
            save_file({key: tensor.clone() for key, tensor in content.items()}, path)
        else:
            torch.save(content, path)
    return folder


def together(contents: Callable[[Files], dict[str, Any]], **options: Any) -> CommunityFile:
    """A folder with several files."""
    return CommunityFile(lambda folder, files: write_files(folder, contents(files)), **options)


def alone(name: str, content: Callable[[dict], Any] = dict, file: str = GPT, **options: Any) -> CommunityFile:
    """One network's file under another name."""
    return CommunityFile(lambda folder, files: write_files(folder, {name: content(files[file])}) / name, **options)


def in_parallel(entries: dict) -> dict:
    return {f"module.{key}": value for key, value in entries.items()}


def with_more_tokens(files: Files) -> Files:
    """The vocabulary of the German fine-tunes: 44 rows more, at the end; start and stop as before."""
    grown = {
        key: torch.cat((files[GPT][key], torch.ones(44, *files[GPT][key].shape[1:])))
        for key in ("text_embedding.weight", "text_head.weight", "text_head.bias")
    }
    return {**files, GPT: {**files[GPT], **grown}}


def clvp_of_transformers(files: Files) -> dict[str, torch.Tensor]:
    """The state dict of ClvpModelForConditionalGeneration."""
    entries = {}
    for key, value in files[CLVP].items():
        index = int(found[1]) if (found := re.search(r"attn_layers\.layers\.(\d+)\.", key)) else 0
        key = key.replace("0.0.g", "post_attention_rmsnorm.weight" if index % 2 else "input_rmsnorm.weight")
        key = key.replace(f"attn_layers.layers.{index}.", f"attn_layers.layers.{index // 2}.")
        for official, theirs in (
            ("_transformer.transformer.attn_layers", "_encoder_model"),
            ("_transformer.transformer.norm", "_encoder_model.final_layer_norm"),
            ("to_text_latent", "text_encoder_model.projection"),
            ("to_speech_latent", "speech_encoder_model.projection"),
            ("text_emb.", "text_encoder_model.token_embedding."),
            ("speech_emb.", "speech_encoder_model.token_embedding."),
            ("1.wrap.net.0", "mlp.fc1"),
            ("1.wrap.net.3", "mlp.fc2"),
            ("1.wrap", "self_attn"),
            ("to_out", "out_proj"),
            ("to_q", "q_proj"),
            ("to_k", "k_proj"),
            ("to_v", "v_proj"),
            ("temperature", "logit_scale"),
        ):
            key = key.replace(official, theirs)
        entries[key] = value
    for key, value in files[GPT].items():
        *_, last = key.split(".")
        for official, theirs in (
            ("gpt.ln_f", "speech_decoder_model.model.decoder.layer_norm"),
            ("gpt.h", "speech_decoder_model.model.decoder.layers"),
            ("ln_1", "input_layernorm"),
            ("ln_2", "post_attention_layernorm"),
            ("final_norm", "speech_decoder_model.final_norm"),
            ("mel_head", "speech_decoder_model.lm_head"),
            ("text_embedding", "conditioning_encoder.text_token_embedding"),
            ("text_pos_embedding.emb", "conditioning_encoder.text_position_embedding"),
            ("mel_embedding", "speech_decoder_model.model.decoder.input_embeds_layer"),
            ("mel_pos_embedding.emb", "speech_decoder_model.model.decoder.position_embeds_layer"),
            ("conditioning_encoder.init", "conditioning_encoder.mel_conv"),
        ):
            key = key.replace(official, theirs)
        key = re.sub(r"encoder\.attn\.(\d+)\.norm", r"encoder.group_norms.\1", key).replace(
            "conditioning_encoder.attn", "conditioning_encoder.mel_attn_blocks"
        )
        if "text_head" in key or key.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        if "attn.c_attn" in key:
            for name, part in zip("qkv", value.T.chunk(3) if last == "weight" else value.chunk(3), strict=True):
                entries[key.replace("c_attn", f"{name}_proj")] = part
        elif "qkv" in key:
            rows = value.squeeze(-1) if last == "weight" else value
            # rows of q, k and v for the first head, then for the second, …
            blocks = rows.split(len(rows) // (3 * HEADS))
            for offset, name in enumerate("qkv"):
                entries[key.replace("qkv", f"{name}_proj")] = torch.cat(blocks[offset::3])
        elif "proj_out" in key:
            entries[key.replace("proj_out", "out_proj")] = value.squeeze(-1)
        elif "attn.c_proj" in key:
            entries[key.replace("c_proj", "out_proj")] = value.T if last == "weight" else value
        else:
            entries[key] = value
    return {key: value.contiguous().clone() for key, value in entries.items()}


def univnet_of_transformers(wrapped: dict) -> dict[str, torch.Tensor]:
    """The state dict of UnivNetModel."""
    entries = {}
    for key, value in wrapped["model_g"].items():
        for official, theirs in (
            (r"convt_pre\.1\.", "convt_pre."),
            (r"input_conv\.0\.", "input_conv."),
            (r"residual_convs\.(\d)\.1\.", r"resblocks.\1.conv1."),
            (r"residual_convs\.(\d)\.3\.", r"resblocks.\1.conv2."),
            (r"conv_blocks\.(\d)\.1\.", r"resblocks.\1.conv."),
            (r"^res_stack", "resblocks"),
            (r"^conv_post\.1\.", "conv_post."),
        ):
            key = re.sub(official, theirs, key)
        entries[key] = value
    return entries


COQUI = {"model": "tortoise", "model_args": {"autoregressive_layers": 30}}
CLVP_CONFIG = {
    "model_type": "clvp",
    "architectures": ["ClvpModelForConditionalGeneration"],
    "decoder_config": {"num_hidden_layers": 30},
}
LAYOUTS = {
    "a fine-tuned decoder": alone("8301_gpt_ema.pth"),
    "of old transformers": alone(
        "old.pth",
        lambda entries: {
            **entries,
            "gpt.h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8),
            "gpt.h.0.attn.masked_bias": torch.tensor(-1e4),
            "gpt.wte.weight": torch.zeros(3, 4),
        },
    ),
    "from DataParallel": alone("parallel.pth", in_parallel),
    "under model": alone("model.pth", lambda entries: {"model": entries, "optimizer": {"state": {}}, "epoch": 7}),
    "under state_dict": alone("last.ckpt.pth", lambda entries: {"state_dict": entries, "epoch": 7}),
    "under model_state_dict": alone("step_9.pth", lambda entries: {"model_state_dict": entries, "step": 9}),
    "of Lightning, as a module": alone(
        "module.ckpt", lambda entries: {"state_dict": {f"model.gpt.{key}": entries[key] for key in entries}}
    ),
    "with any prefix, in safetensors": alone(
        "p.safetensors", lambda entries: {f"autoregressive.{key}": value for key, value in entries.items()}
    ),
    "averaged, next to the last weights": alone(
        "both_ema.pth",
        lambda entries: {"model": {key: 0 * entries[key] for key in entries}, "ema": in_parallel(entries), "step": 9},
    ),
    "with the states of generators, and words of other models": alone(
        "words.pt",
        lambda entries: {
            "model": entries,
            "generator": {"cpu": torch.Generator().get_state()},
            "generators": [torch.Generator().get_state()],
            "dims": {"width": 3},
        },
    ),
    "under both": alone("both.pth", lambda entries: {"state_dict": in_parallel(entries)}),
    "of averaged weights": alone("ema.pth", lambda entries: {"ema": entries, "step": torch.tensor(9).item()}),
    "compiled, of Lightning": alone(
        "last.ckpt",
        lambda entries: {
            "state_dict": {f"_orig_mod.{key}": value for key, value in entries.items()},
            "optimizer_states": [{}],
            "lr_schedulers": [{"last": torch.zeros(1)}],
            "pytorch-lightning_version": "2",
        },
    ),
    "of PEFT, merged": alone("merged.pth", lambda entries: {f"base_model.model.{k}": v for k, v in entries.items()}),
    "a folder of training": together(
        lambda files: {
            "models/8301_gpt.pth": files[GPT],
            "training_state/8301.state": {"epoch": 7, "optimizers": [{"state": {}}]},
        }
    ),
    "safetensors": alone("gpt.safetensors"),
    "a larger vocabulary with its tokenizer": together(
        lambda files: {"tokenizer.json": TOKENIZER.read_text(encoding="utf-8"), "tuned_gpt.pth": files[GPT]},
        change=with_more_tokens,
    ),
    "files in models/": together(
        lambda files: {f"models/{name}": entries for name, entries in files.items()}, based=False
    ),
    "coqui's folder": together(lambda files: {"config.json": COQUI, **files}, based=False),
    "transformers' CLVP": together(
        lambda files: {"model.safetensors": clvp_of_transformers(files), "config.json": CLVP_CONFIG}
    ),
    "transformers' UnivNet": together(
        lambda files: {
            "pytorch_model.bin": univnet_of_transformers(files[UNIVNET]),
            "config.json": {"model_type": "univnet"},
        }
    ),
    "a diffusion decoder": alone("rlg_diffusion_gpt.pth", file=DIFFUSION),
    "CLVP": alone("clvp_tuned.pth", file=CLVP),
    "HiFi-GAN": alone("hifigan_finetuned.pth", file=HIFIGAN),
}
