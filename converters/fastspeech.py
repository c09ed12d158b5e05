"""Convert FastSpeech and its vocoder as three functions: ``text``, ``mel`` and ``vocoder``.

The PyTorch network is in ``ane.models.fastspeech.networks``. The host, which is the program that calls the packages,
looks up embeddings. From the durations, it also computes to which symbol each frame belongs, and passes the result to
``mel`` as a matrix of zeros and ones.

The host chooses the length of ``text`` by the number of symbols. When the durations are known, it chooses the length of
``mel`` by the number of frames. FastSpeech normalises its residual stream after every addition, so the stream stays
near 1 and needs no scale (``converters.blocks``, principle 7).
"""

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.base import Backend
from ane.backends.onnx.engines import LENGTHS, bucket_range
from ane.bundles import Bundle
from ane.models.durations import alignment_matrix
from ane.models.fastspeech.networks import FastSpeech, FFTBlock, FFTStack, joined_heads, position_table
from converters import blocks
from converters.coreml.graph import CoreMLGraph, Style, Var, mb
from converters.function_table import Bucket, ConvertibleModel, Function, Sizes, stage_probe
from converters.neural_engine import MAX_AXIS
from converters.onnx.graph import masked, network_call, noise, traced
from converters.vocoders import hifigan

SYMBOLS = 32, 64, 96, 128, 192, 256, 384  # lengths of ``text``. 384 symbols fill about 2048 frames
FRAMES = 256, 512, 768, 1024, 1536, 2048  # lengths of ``mel``
SHORT_WINDOW = 14  # smaller length of ``vocoder``, in frames
MISSING = 5  # a test input is this much shorter than the function's length


def text(network: FastSpeech, symbols: int) -> CoreMLGraph:
    """Describe the graph that encodes the symbols of a text.

    The inputs are x (1, C, 1, T), the embeddings of T symbols, and inside (1, 1, 1, T), which is 1 at the text's
    symbols and 0 in the padding after them. The outputs are states (1, C, 1, T) and log_durations (1, 1, 1, T). In the
    padding, x and both outputs are 0.
    """
    exact = network.config.padding == "exact"

    def body(s: Style, x: Var, inside: Var) -> dict[str, Var]:
        states = _stack(s, x, inside, network.phoneme_side, "phoneme_side", exact)
        return {"states": states, "log_durations": _log_durations(s, states, inside, network, exact)}

    return CoreMLGraph(
        "text", {"symbols": symbols}, {"x": (1, network.config.d_model, 1, symbols), "inside": (1, 1, 1, symbols)}, body
    )


def mel(network: FastSpeech, frames: int, symbols: int) -> CoreMLGraph:
    """Describe the graph that repeats the symbols' states for their frames and computes the mel (1, M, 1, L).

    The inputs are states (1, C, 1, T), alignment (1, 1, T, L) and inside (1, 1, 1, L). alignment[0, 0, t, l] is 1 if
    frame l belongs to symbol t, and 0 otherwise (``ane.models.durations``). inside[0, 0, 0, l] is
    1 if frame l belongs to the sentence, and 0 in the padding. A matrix product with ``alignment`` repeats each state
    for its frames. In the padding after the symbols and frames, ``states`` and ``alignment`` are 0.
    """

    def body(s: Style, states: Var, alignment: Var, inside: Var) -> dict[str, Var]:
        regulated = blocks.join_heads(mb.matmul(x=blocks.split_heads(states, 1), y=alignment))
        blocks.rename(regulated, "length_regulator")
        x = _stack(s, regulated, inside, network.mel_side, "mel_side", network.config.padding == "exact")
        return {"mel": blocks.linear(s, x, network.mel_linear)}

    return CoreMLGraph(
        "mel",
        {"frames": frames, "symbols": symbols},
        {
            "states": (1, network.config.d_model, 1, symbols),
            "alignment": (1, 1, symbols, frames),
            "inside": (1, 1, 1, frames),
        },
        body,
    )


def _stack(s: Style, x: Var, inside: Var, stack: FFTStack, path: str, exact: bool) -> Var:
    """Add positions, then apply the stack's blocks: (1, C, 1, S) → (1, C, 1, S). The output is 0 in the padding.

    The function adds positions to the padding too, because ``blocks.layer_norm`` allows no column whose values are all
    equal. Positions in the padding do not change the sequence: no query attends to the padding, and the output of the
    first norm is masked.
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
    """Normalise y + x, and set the padding to 0. The result gets the name of the PyTorch module ``name``."""
    x = mb.add(x=y, y=x, **blocks.named(f"{name}.residual"))
    return mb.mul(x=blocks.layer_norm(s, x, norm, f"{name}.layer_norm"), y=inside, **blocks.named(name))


def _log_durations(s: Style, states: Var, inside: Var, network: FastSpeech, exact: bool) -> Var:
    """Predict log durations of symbols: (1, C, 1, T) → (1, 1, 1, T). The log durations are 0 in the padding."""
    predictor, path = network.length_regulator.duration_predictor, "length_regulator.duration_predictor"
    x = states
    for layer in (1, 2):
        conv, norm = predictor.get_submodule(f"conv1d_{layer}"), predictor.get_submodule(f"layer_norm_{layer}")
        x = mb.relu(x=blocks.same_conv(s, x, conv, f"{path}.conv1d_{layer}"))
        x = blocks.layer_norm(s, x, norm, f"{path}.layer_norm_{layer}")
        if exact and layer == 1:
            x = mb.mul(x=x, y=inside)
    return mb.mul(x=blocks.linear(s, x, predictor.linear_layer, f"{path}.linear_layer"), y=inside)


# Default lengths


def positions(model: Bundle) -> int:
    return model.config("fastspeech").max_seq_len


def up_to(most: int, sizes: Sizes) -> Sizes:
    """Limit ascending ``sizes`` to ``most``: return the sizes below ``most``, then ``min(most, largest size)``."""
    return (*(size for size in sizes[:-1] if size < most), min(most, sizes[-1]))


def vocoder_windows(model: Bundle) -> Sizes:
    """Return the vocoder's lengths in frames: a short window, and the longest window that the engine takes."""
    config = model.config("vocoder")
    longest = MAX_AXIS // config.hop - 2 * config.level_margins[-1]
    return tuple(dict.fromkeys((min(SHORT_WINDOW, longest), longest)))


# Test inputs


def probe_text(
    backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Encode nearly as many random symbols as the function takes, and return their states and log durations."""
    length = probed_length(model, bucket["symbols"])
    ids = rng.integers(1, model.config("fastspeech").embeddings, (1, length))
    encoded = backend.run("text", ids=ids, mask=np.ones((1, length), np.float32))
    return [encoded[..., :-1], encoded[..., -1:]]


def probe_mel(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Return the mel of nearly as many frames as the function takes.

    The function repeats random states for different numbers of frames.
    """
    frames, symbols = probed_length(model, bucket["frames"]), max(bucket["symbols"] - MISSING, 1)
    counts = rng.multinomial(frames, np.full(symbols, 1 / symbols))[None]
    states = rng.standard_normal((1, symbols, model.config("fastspeech").d_model), dtype=np.float32)
    return [
        backend.run(
            "mel", states=states, alignment=alignment_matrix(counts, frames), mask=np.ones((1, frames), np.float32)
        )
    ]


def probed_length(model: Bundle, bucket: int) -> int:
    """Return the length of a test input.

    The length is a little less than ``bucket``, the function's length, to test padding too. If padding changes the
    result, as in NVIDIA's class, return ``bucket`` itself.
    """
    config = model.config("fastspeech")
    return min(bucket if config.padding == "published" else max(bucket - MISSING, 1), config.max_seq_len)


# runs the vocoder on a random mel with nearly as many frames as the function takes
probe_vocoder = stage_probe(
    "vocoder", mel=lambda model, bucket: (1, model.config("vocoder").num_mels, bucket["frames"] - 1)
)


# ONNX graphs: torch traces the PyTorch networks, batch first. Axes with a name may have any length


class StoredPositions(nn.Module):
    """A ``PositionEncoding`` that reads a table, because a graph cannot compute encodings for any length."""

    table: Tensor

    def __init__(self, positions: int, width: int, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("table", position_table(positions, width).to(dtype), persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]] * mask


class ExplicitAttention(nn.Module):
    """``HeadAttention`` as separate products and a softmax.

    ONNX Runtime's attention operator cannot take a mask that all queries share.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3) + bias
        return joined_heads(scores.softmax(dim=-1) @ v)


def make_traceable(network: nn.Module, dtype: torch.dtype) -> None:
    """Replace the modules of FastSpeech that torch cannot trace. Other networks stay unchanged."""
    if not isinstance(network, FastSpeech):
        return
    # TensorRT builds an engine for the end of a range of lengths, which may exceed the model's positions
    positions = bucket_range(network.config.max_seq_len, LENGTHS)[1]
    for stack in (network.phoneme_side, network.mel_side):
        stack.positions = StoredPositions(positions, network.config.d_model, dtype)
        for block in stack.layer_stack:
            block.slf_attn.attention = ExplicitAttention()


onnx_text = traced(
    lambda network, *inputs: network.text(*inputs),
    ("encoded",),
    lambda network, dtype: masked("ids", torch.ones((2, 13), dtype=torch.int64), "symbols", dtype),
)
onnx_mel = traced(
    lambda network, *inputs: network.mel(*inputs),
    ("mel",),
    lambda network, dtype: {
        "states": (noise(2, 13, network.config.d_model).to(dtype), {0: "batch", 1: "symbols"}),
        "alignment": (torch.zeros((2, 13, 29), dtype=dtype), {0: "batch", 1: "symbols", 2: "frames"}),
        "mask": (torch.ones((2, 29), dtype=dtype), {0: "batch", 1: "frames"}),
    },
)
onnx_vocoder = traced(
    network_call,
    ("sound",),
    lambda network, dtype: {"mel": (noise(2, network.config.num_mels, 19), {0: "batch", 2: "frames"})},
)


# Module → the name of its output in NVIDIA's verify_trt.py (DeepLearningExamples, CUDA-Optimized/FastSpeech). Three
# values differ from NVIDIA's values of the same name. NVIDIA's script keeps references to tensors that are later
# changed in place, so its ``conv2`` includes the residual and its ``ln`` is masked. Here, they are the plain outputs of
# the convolution and of the norm. ``dur`` is the logarithm of the durations, because the host rounds them.
# NVIDIA's ``out.seq_mask`` is missing, because the host makes this input of ``mel``.
PUBLISHED = {
    "attention": "scaled_dot",
    "layer_norm": "ln",
    "w_1": "conv1",
    "w_2": "conv2",
    "linear": "linear",
    "residual": "residual",
}
WHOLE = {
    "word_emb": "act.emb",
    "phoneme_side.positions": "act.phoneme_side.add_pos_enc",
    "mel_side.positions": "act.mel_side.add_pos_enc",
    "phoneme_side": "act.phoneme_side.seq",
    "mel_side": "act.mel_side.seq",
    "length_regulator": "act.length_regulator.seq",
    "length_regulator.duration_predictor": "act.length_regulator.dur",
    "mel_linear": "out.seq",
}


def published(path: str) -> str:
    """Return NVIDIA's name for the output of a module, or "" if there is none (see ``ConvertibleModel.published``)."""
    layer = re.fullmatch(r"(\w+_side\.layer_stack\.\d+)(?:\.(slf_attn|pos_ffn)\.(\w+))?", path)
    if not layer:
        return WHOLE.get(path, "")
    block, part, name = layer.groups()
    return f"act.{block}" if part is None else f"act.{block}.{part}.{PUBLISHED[name]}" if name in PUBLISHED else ""


# with random weights of the official size, the functions reach 61 dB, and 58 dB if every operation is rounded
ACOUSTIC = {"fp16": (55.0, 45.0)}

FUNCTIONS = (
    Function(
        "text",
        "fastspeech",
        probe_text,
        onnx=onnx_text,
        onnx_lengths={"symbols": 40},
        coreml=lambda r: [text(r.network, size) for size in r.lengths("text")],
        bucket=Bucket("symbols", 8, lambda model: up_to(positions(model), SYMBOLS), positions),
        outputs={"states": "phoneme_side", "log_durations": "length_regulator.duration_predictor.linear_layer"},
        thresholds=ACOUSTIC,
    ),
    Function(
        "mel",
        "fastspeech",
        probe_mel,
        onnx=onnx_mel,
        onnx_lengths={"frames": 90, "symbols": 30},
        # the host may pass states for a text of any length
        coreml=lambda r: [mel(r.network, size, max(r.lengths("text"))) for size in r.lengths("mel")],
        bucket=Bucket("frames", 8, lambda model: up_to(positions(model), FRAMES), positions),
        outputs={"mel": "mel_linear"},
        thresholds=ACOUSTIC,
    ),
    Function(
        "vocoder",
        "vocoder",
        probe_vocoder,
        onnx=onnx_vocoder,
        onnx_lengths={"frames": 30},
        coreml=lambda r: [hifigan(r.network, size, "vocoder") for size in r.lengths("vocoder")],
        bucket=Bucket("frames", 4, vocoder_windows, lambda model: max(vocoder_windows(model))),
        # the thresholds are similar to those of Tortoise's HiFi-GAN
        outputs={"sound": ""},
        thresholds={"fp16": (60.0, 45.0)},
    ),
)
MODEL = ConvertibleModel(
    "ane.models.fastspeech.networks", FUNCTIONS, before_tracing=make_traceable, published=published
)
