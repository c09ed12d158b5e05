"""Convert FastSpeech and its vocoder: Core ML graphs, ONNX graphs, default lengths and test inputs of their functions.

Reference: ``ane.models.fastspeech.networks``. The embedding table and the length regulator stay on the host, and the
regulator's repeats arrive as a matrix of zeros and ones. Streams are normalised after every residual, so they stay near
1 and are not scaled (blocks, principle 7). A text and its frames get their buckets independently: the text by its
symbols, then, when the durations are known, the mel by its frames.
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

SYMBOLS = 32, 64, 96, 128, 192, 256, 384  # 384 symbols fill about 2048 frames
FRAMES = 256, 512, 768, 1024, 1536, 2048
SHORT_WINDOW = 14  # frames of the vocoder's smaller bucket
MISSING = 5  # length of a bucket less the length of its test input


def text(network: FastSpeech, symbols: int) -> CoreMLGraph:
    """Return the graph x (1, C, 1, T), inside (1, 1, 1, T) → states (1, C, 1, T), log_durations (1, 1, 1, T).

    x holds embeddings. inside is 1 at symbols and 0 in the padding. Inputs and outputs are 0 in the padding.
    """
    exact = network.config.padding == "exact"

    def body(s: Style, x: Var, inside: Var) -> dict[str, Var]:
        states = _stack(s, x, inside, network.phoneme_side, "phoneme_side", exact)
        return {"states": states, "log_durations": _log_durations(s, states, inside, network, exact)}

    return CoreMLGraph(
        "text", {"symbols": symbols}, {"x": (1, network.config.d_model, 1, symbols), "inside": (1, 1, 1, symbols)}, body
    )


def mel(network: FastSpeech, frames: int, symbols: int) -> CoreMLGraph:
    """Return the graph states (1, C, 1, T), alignment (1, 1, T, L), inside (1, 1, 1, L) → mel (1, M, 1, L).

    Frame l belongs to symbol t if the alignment is 1 there (``ane.models.durations``), so one product repeats the
    states. Both inputs are 0 in the padding of symbols and frames.
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
    """Add positions, then apply the blocks: (1, C, 1, S) → (1, C, 1, S), 0 in the padding.

    The padding gets positions too. No query attends to its keys, and the first norm's result is masked. The positions
    keep columns of padding from being constant, as ``blocks.layer_norm`` needs.
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
    """Normalise y + x, 0 in the padding. The result is the output of the module ``name``."""
    x = mb.add(x=y, y=x, **blocks.named(f"{name}.residual"))
    return mb.mul(x=blocks.layer_norm(s, x, norm, f"{name}.layer_norm"), y=inside, **blocks.named(name))


def _log_durations(s: Style, states: Var, inside: Var, network: FastSpeech, exact: bool) -> Var:
    """Predict log durations: (1, C, 1, T) → (1, 1, 1, T), 0 in the padding."""
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
    """Return the ``sizes`` below ``most``, then ``most`` itself, or the largest of ``sizes`` if that is smaller."""
    return (*(size for size in sizes[:-1] if size < most), min(most, sizes[-1]))


def vocoder_windows(model: Bundle) -> Sizes:
    """Return a short window, and the longest one that fits on the engine's widest axis."""
    config = model.config("vocoder")
    longest = MAX_AXIS // config.hop - 2 * config.level_margins[-1]
    return tuple(dict.fromkeys((min(SHORT_WINDOW, longest), longest)))


# Test inputs


def probe_text(
    backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Return states and log durations of symbols that nearly fill the bucket."""
    length = probed_length(model, bucket["symbols"])
    ids = rng.integers(1, model.config("fastspeech").embeddings, (1, length))
    encoded = backend.run("text", ids=ids, mask=np.ones((1, length), np.float32))
    return [encoded[..., :-1], encoded[..., -1:]]


def probe_mel(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Return the mel of states that are repeated unevenly, in frames that nearly fill the bucket."""
    frames, symbols = probed_length(model, bucket["frames"]), max(bucket["symbols"] - MISSING, 1)
    counts = rng.multinomial(frames, np.full(symbols, 1 / symbols))[None]
    states = rng.standard_normal((1, symbols, model.config("fastspeech").d_model), dtype=np.float32)
    return [
        backend.run(
            "mel", states=states, alignment=alignment_matrix(counts, frames), mask=np.ones((1, frames), np.float32)
        )
    ]


def probed_length(model: Bundle, bucket: int) -> int:
    """Return a little less than the bucket, or all of it if padding changes the result, as with NVIDIA's class."""
    config = model.config("fastspeech")
    return min(bucket if config.padding == "published" else max(bucket - MISSING, 1), config.max_seq_len)


# the sound of a mel that nearly fills the bucket
probe_vocoder = stage_probe(
    "vocoder", mel=lambda model, bucket: (1, model.config("vocoder").num_mels, bucket["frames"] - 1)
)


# ONNX graphs: the reference networks, batch first. Named axes have any length


class StoredPositions(nn.Module):
    """``PositionEncoding`` with a slice of a table, since a graph cannot compute positions for a dynamic length."""

    table: Tensor

    def __init__(self, positions: int, width: int, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("table", position_table(positions, width).to(dtype), persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]] * mask


class ExplicitAttention(nn.Module):
    """``HeadAttention`` in its parts.

    ONNX Runtime's operator takes no mask that is the same for all queries.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3) + bias
        return joined_heads(scores.softmax(dim=-1) @ v)


def make_traceable(network: nn.Module, dtype: torch.dtype) -> None:
    """Replace the modules of the acoustic network that cannot be traced."""
    if not isinstance(network, FastSpeech):
        return
    # TensorRT builds an engine for the largest length of a bucket, which may exceed the model's positions
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


# The activations that NVIDIA's verify_trt.py compares, by its names (DeepLearningExamples, CUDA-Optimized/FastSpeech).
# The example stores references and then computes in place, so its ``conv2`` has the residual too and its ``ln`` is
# masked. Here ``conv2`` is the convolution's output, and ``ln`` is the norm's output. ``dur`` is the logarithm, because
# the host rounds it, and the host makes ``out.seq_mask``, an input of the mel side.
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
    """Return NVIDIA's name for the output of a module (``ConvertibleModel.published``)."""
    layer = re.fullmatch(r"(\w+_side\.layer_stack\.\d+)(?:\.(slf_attn|pos_ffn)\.(\w+))?", path)
    if not layer:
        return WHOLE.get(path, "")
    block, part, name = layer.groups()
    return f"act.{block}" if part is None else f"act.{block}.{part}.{PUBLISHED[name]}" if name in PUBLISHED else ""


# random weights at the official size reach 61 dB, with rounding 58
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
        # called with the states of a text in any bucket
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
        # like Tortoise's HiFi-GAN
        outputs={"sound": ""},
        thresholds={"fp16": (60.0, 45.0)},
    ),
)
MODEL = ConvertibleModel(
    "ane.models.fastspeech.networks", FUNCTIONS, before_tracing=make_traceable, published=published
)
