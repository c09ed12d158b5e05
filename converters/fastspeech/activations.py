"""The activations that NVIDIA's verify_trt.py compares, by its names (DeepLearningExamples, CUDA-Optimized/FastSpeech).

The example stores references and goes on in place, so its ``conv2`` holds the residual too and its ``ln`` is masked.
Here the names stand for what they say: ``conv2`` is the convolution's output, ``ln`` the norm's before the mask.
"""

from collections.abc import Mapping

from ane.models.fastspeech.networks.acoustic import FastSpeechConfig

# in the order of computation; the path of the module that returns it, inside a block
LAYER = {"slf_attn.linear": "slf_attn.linear", "slf_attn.scaled_dot": "slf_attn.attention",
         "slf_attn.residual": "slf_attn.residual", "slf_attn.ln": "slf_attn.layer_norm", "pos_ffn.conv1": "pos_ffn.w_1",
         "pos_ffn.conv2": "pos_ffn.w_2", "pos_ffn.residual": "pos_ffn.residual", "pos_ffn.ln": "pos_ffn.layer_norm"}


def published_names(kind: str, config: FastSpeechConfig) -> Mapping[str, tuple[str, ...]]:
    """The activations of a kind of function ("text" or "mel"): name → paths of the modules that return it.

    Modules of one name return the same, so a graph may have the value under any of them. None: the host makes it.
    """
    if kind == "text":
        return {"act.emb": ("word_emb",), **_side("phoneme_side", config.phoneme_side_n_layer),
                "act.length_regulator.dur": ()}
    if kind == "mel":
        return {"act.length_regulator.seq": ("length_regulator",), **_side("mel_side", config.mel_side_n_layer),
                "out.seq_mask": (), "out.seq": ("mel_linear",)}
    return {}


def _side(side: str, layers: int) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {f"act.{side}.add_pos_enc": (f"{side}.positions",)}
    for index in range(layers):
        block = f"{side}.layer_stack.{index}"
        found |= {f"act.{block}.{name}": (f"{block}.{path}",) for name, path in LAYER.items()}
        found[f"act.{block}"] = (block, f"{block}.pos_ffn", *([side] if index == layers - 1 else []))
    return found | {f"act.{side}.seq": found[f"act.{side}.layer_stack.{layers - 1}"]}
