"""Both sides of FastSpeech as Core ML graphs; reference: ``ane.models.fastspeech.networks.acoustic``.

The embedding table and the length regulator stay on the host; the regulator's repeats arrive as a matrix of zeros and
ones. Streams are normalised after every residual, so they stay near 1 and are not scaled (blocks, principle 7).
"""

from functools import partial

from torch import nn

from ane.models.fastspeech.networks.acoustic import FastSpeech
from ane.models.fastspeech.networks.layers import FFTBlock, FFTStack, position_table
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb


def text(network: FastSpeech, symbols: int) -> CoreMLGraph:
    """x (1, C, 1, T), inside (1, 1, 1, T) → states (1, C, 1, T), log_durations (1, 1, 1, T), both 0 in the padding.

    x holds embeddings, 0 in the padding; inside is 1 at symbols and 0 in the padding.
    """
    return CoreMLGraph("text", {"symbols": symbols},
                       {"x": (1, network.config.d_model, 1, symbols), "inside": (1, 1, 1, symbols)},
                       partial(_text, network=network))


def mel(network: FastSpeech, frames: int, symbols: int) -> CoreMLGraph:
    """states (1, C, 1, T), alignment (1, 1, T, L), inside (1, 1, 1, L) → mel (1, M, 1, L).

    Frame l is symbol t's where the alignment is 1 (``ane.models.durations``), so one product repeats the
    states. Both inputs are 0 in the padding of symbols and frames.
    """
    return CoreMLGraph("mel", {"frames": frames, "symbols": symbols},
                       {"states": (1, network.config.d_model, 1, symbols), "alignment": (1, 1, symbols, frames),
                        "inside": (1, 1, 1, frames)}, partial(_mel, network=network))


def _text(s: Style, x: Var, inside: Var, *, network: FastSpeech) -> dict[str, Var]:
    exact = network.config.padding == "exact"
    states = _stack(s, x, inside, network.phoneme_side, "phoneme_side", exact)
    return {"states": states, "log_durations": _log_durations(s, states, inside, network, exact)}


def _mel(s: Style, states: Var, alignment: Var, inside: Var, *, network: FastSpeech) -> dict[str, Var]:
    regulated = blocks.join_heads(mb.matmul(x=blocks.split_heads(states, 1), y=alignment))
    blocks.rename(regulated, "length_regulator")
    x = _stack(s, regulated, inside, network.mel_side, "mel_side", network.config.padding == "exact")
    return {"mel": blocks.linear(s, x, network.mel_linear)}


def _stack(s: Style, x: Var, inside: Var, stack: FFTStack, path: str, exact: bool) -> Var:
    """Positions are added, then the blocks follow: (1, C, 1, S) → the same, 0 in the padding.

    The padding gets positions too: no key of it is attended to, and the first norm's result is masked. It keeps columns
    of padding from being constant, which ``blocks.layer_norm`` needs.
    """
    _, C, _, S = x.shape
    mask = blocks.key_mask(s, inside)
    x = mb.add(x=x, y=s.const(position_table(S, C).T[None, :, None]), **blocks.named(f"{path}.positions"))
    for index, block in enumerate(stack.layer_stack):
        x = _block(s, x, inside, mask, block, f"{path}.layer_stack.{index}", exact)
    return x


def _block(s: Style, x: Var, inside: Var, mask: Var, block: FFTBlock, name: str, exact: bool) -> Var:
    attention, feed = block.slf_attn, block.pos_ffn
    q, k, v = (blocks.conv(s, x, *part) for part in blocks.queries_keys_values(attention.linear, attention.heads))
    y = blocks.attention(s, q, k, v, attention.heads, mask)
    blocks.rename(y, f"{name}.slf_attn.attention")
    y = blocks.linear(s, y, attention.fc, f"{name}.slf_attn.fc")
    x = _normalised(s, y, x, inside, attention.layer_norm, f"{name}.slf_attn")
    y = mb.relu(x=blocks.same_conv(s, x, feed.w_1, f"{name}.pos_ffn.w_1"))
    if exact:
        y = mb.mul(x=y, y=inside)
    y = blocks.same_conv(s, y, feed.w_2, f"{name}.pos_ffn.w_2")
    return _normalised(s, y, x, inside, feed.layer_norm, f"{name}.pos_ffn")


def _normalised(s: Style, y: Var, x: Var, inside: Var, norm: nn.LayerNorm, name: str) -> Var:
    """The norm of y + x, 0 in the padding: the output of the module ``name``."""
    x = mb.add(x=y, y=x, **blocks.named(f"{name}.residual"))
    return mb.mul(x=blocks.layer_norm(s, x, norm, f"{name}.layer_norm"), y=inside, **blocks.named(name))


def _log_durations(s: Style, states: Var, inside: Var, network: FastSpeech, exact: bool) -> Var:
    """(1, C, 1, T) → (1, 1, 1, T), 0 in the padding."""
    predictor, path = network.length_regulator.duration_predictor, "length_regulator.duration_predictor"
    x = states
    for layer in (1, 2):
        conv, norm = predictor.get_submodule(f"conv1d_{layer}"), predictor.get_submodule(f"layer_norm_{layer}")
        x = mb.relu(x=blocks.same_conv(s, x, conv, f"{path}.conv1d_{layer}"))
        x = blocks.layer_norm(s, x, norm, f"{path}.layer_norm_{layer}")
        if exact and layer == 1:
            x = mb.mul(x=x, y=inside)
    return mb.mul(x=blocks.linear(s, x, predictor.linear_layer, f"{path}.linear_layer"), y=inside)
