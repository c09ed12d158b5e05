"""Tortoise's weights as transformers stores them: its ClvpModelForConditionalGeneration holds the decoder and CLVP, its
UnivNetModel the vocoder.

The keys are those of its converters (models/clvp/convert_clvp_to_hf.py, models/univnet/convert_univnet.py of 4.36 to
4.57), which rename upstream's and store q, k and v of the decoder and of the conditioning encoder apart.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ane.bundles.entries import Entries

# a key of the layout → the official files that have the same weights
HELD = {"speech_decoder_model.final_norm.weight": ("autoregressive.pth", "clvp2.pth"),
        "resblocks.0.kernel_predictor.input_conv.bias": ("vocoder.pth",)}
RENAMED = [(re.compile(found), official) for found, official in (
    (r"^speech_decoder_model\.model\.decoder\.layers\.", "gpt.h."),
    (r"^speech_decoder_model\.model\.decoder\.layer_norm\.", "gpt.ln_f."),
    (r"^speech_decoder_model\.model\.decoder\.input_embeds_layer\.", "mel_embedding."),
    (r"^speech_decoder_model\.model\.decoder\.position_embeds_layer\.", "mel_pos_embedding.emb."),
    (r"^speech_decoder_model\.lm_head\.", "mel_head."), (r"^speech_decoder_model\.final_norm\.", "final_norm."),
    (r"^(gpt\.h\.\d+)\.input_layernorm\.", r"\1.ln_1."), (r"^(gpt\.h\.\d+)\.post_attention_layernorm\.", r"\1.ln_2."),
    (r"^(gpt\.h\.\d+)\.attn\.out_proj\.", r"\1.attn.c_proj."),
    (r"^conditioning_encoder\.text_token_embedding\.", "text_embedding."),
    (r"^conditioning_encoder\.text_position_embedding\.", "text_pos_embedding.emb."),
    (r"^conditioning_encoder\.mel_conv\.", "conditioning_encoder.init."),
    (r"^conditioning_encoder\.group_norms\.(\d+)\.", r"conditioning_encoder.attn.\1.norm."),
    (r"^conditioning_encoder\.mel_attn_blocks\.(\d+)\.out_proj\.", r"conditioning_encoder.attn.\1.proj_out."),
    (r"^conditioning_encoder\.mel_attn_blocks\.", "conditioning_encoder.attn."),
    (r"^(text|speech)_encoder_model\.token_embedding\.", r"\1_emb."),
    (r"^(text|speech)_encoder_model\.projection\.", r"to_\1_latent."),
    (r"^(text|speech)_encoder_model\.final_layer_norm\.", r"\1_transformer.transformer.norm."),
    (r"^(text|speech)_encoder_model\.rotary_pos_emb\.", r"\1_transformer.transformer.attn_layers.rotary_pos_emb."),
    (r"^logit_scale$", "temperature"),
    (r"^resblocks\.(\d+)\.convt_pre\.", r"res_stack.\1.convt_pre.1."),
    (r"^resblocks\.(\d+)\.resblocks\.(\d+)\.conv\.", r"res_stack.\1.conv_blocks.\2.1."),
    (r"^resblocks\.(\d+)\.kernel_predictor\.", r"res_stack.\1.kernel_predictor."),
    (r"\.kernel_predictor\.input_conv\.", ".kernel_predictor.input_conv.0."),
    (r"\.kernel_predictor\.resblocks\.(\d+)\.conv1\.", r".kernel_predictor.residual_convs.\1.1."),
    (r"\.kernel_predictor\.resblocks\.(\d+)\.conv2\.", r".kernel_predictor.residual_convs.\1.3."),
    (r"^conv_post\.", "conv_post.1."))]
ENCODER = {     # part of an encoder's layer → of upstream's two layers, the first for attention: which, and its part
    "input_rmsnorm.weight": (0, "0.0.g"), "self_attn.q_proj": (0, "1.wrap.to_q"),
    "self_attn.k_proj": (0, "1.wrap.to_k"), "self_attn.v_proj": (0, "1.wrap.to_v"),
    "self_attn.out_proj": (0, "1.wrap.to_out"),
    "post_attention_rmsnorm.weight": (1, "0.0.g"), "mlp.fc1": (1, "1.wrap.net.0"), "mlp.fc2": (1, "1.wrap.net.3")}
ENCODER_LAYER = re.compile(rf"^(text|speech)_encoder_model\.layers\.(\d+)\.({'|'.join(map(re.escape, ENCODER))})\b")
QUERY = re.compile(r"^(gpt\.h\.\d+\.attn|conditioning_encoder\.attn\.\d+)\.q_proj\.(weight|bias)$")


def held_files(entries: Entries) -> tuple[str, ...]:
    """The official files whose weights a file in transformers' layout has; () for any other file."""
    return next((files for key, files in HELD.items() if key in entries), ())


def official_entries(entries: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """Entries of that layout under upstream's keys, in upstream's shapes.

    Args:
        heads: of the decoder, which are those of its conditioning encoder too.
    """
    renamed = {_official_key(key): value for key, value in entries.items()}
    for key in [key for key in renamed if QUERY.match(key)]:
        parts = [renamed.get(key.replace("q_proj", f"{name}_proj")) for name in "qkv"]
        if all(isinstance(part, Tensor) and part.shape == parts[0].shape and len(part) % heads == 0 for part in parts):
            for name in "qkv":
                del renamed[key.replace("q_proj", f"{name}_proj")]
            _join(renamed, key, parts, heads)
    for key, value in renamed.items():
        if isinstance(value, Tensor) and value.ndim == 2:
            if re.fullmatch(r"gpt\.h\.\d+\.attn\.c_proj\.weight", key):
                renamed[key] = value.T
            elif re.fullmatch(r"conditioning_encoder\.attn\.\d+\.proj_out\.weight", key):
                renamed[key] = value[..., None]
    return renamed


def _join(renamed: dict[str, Any], key: str, parts: list[Any], heads: int) -> None:
    """Put q, k and v together: one after the other in GPT-2, in the conditioning encoder head by head."""
    if key.startswith("gpt."):
        joined = torch.cat(parts)
        renamed[key.replace("q_proj", "c_attn")] = joined.T if joined.ndim == 2 else joined
    else:
        joined = torch.stack([part.unflatten(0, (heads, -1)) for part in parts], dim=1).flatten(0, 2)
        renamed[key.replace("q_proj", "qkv")] = joined[..., None] if joined.ndim == 2 else joined


def _official_key(key: str) -> str:
    if found := ENCODER_LAYER.match(key):
        second, part = ENCODER[found[3]]
        layer = 2 * int(found[2]) + second
        return f"{found[1]}_transformer.transformer.attn_layers.layers.{layer}.{part}{key[found.end():]}"
    for pattern, official in RENAMED:
        key = pattern.sub(official, key)
    return key
