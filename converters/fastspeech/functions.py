"""The converted functions of FastSpeech and its vocoders, their default lengths and their test inputs.

A text and its frames get their buckets independently: the text's by its symbols, then, when the durations are known,
the mel's by its frames.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ane.backends.base import Backend
from ane.backends.onnx.tensorrt import LENGTHS, bucket_range
from ane.bundles import Model
from ane.models.durations import alignment_matrix
from ane.models.fastspeech.networks.acoustic import FastSpeech, FastSpeechConfig
from ane.models.fastspeech.networks.layers import joined_heads, position_table
from converters.fastspeech import acoustic
from converters.functions import Bucket, ConvertibleModel, Function, Sizes
from converters.neural_engine import MAX_AXIS
from converters.onnx.graph import network_call, noise, traced
from converters.vocoders.hifigan import hifigan

SYMBOLS = 32, 64, 96, 128, 192, 256, 384        # 384 symbols fill about 2048 frames
FRAMES = 256, 512, 768, 1024, 1536, 2048
SHORT_WINDOW = 14                               # frames of the vocoder's smaller bucket
MISSING = 5             # by how much a probe's input is shorter than its bucket


# Default lengths

def positions(model: Model) -> int:
    return model.config("fastspeech").max_seq_len


def up_to(most: int, sizes: Sizes) -> Sizes:
    """The ``sizes`` below ``most``, then ``most`` itself or the largest of them, if that is smaller."""
    return (*(size for size in sizes[:-1] if size < most), min(most, sizes[-1]))


def vocoder_windows(model: Model) -> Sizes:
    """A short window, and the longest that fits on the engine's widest axis."""
    config = model.config("vocoder")
    longest = MAX_AXIS // config.hop - 2 * config.level_margins[-1]
    return tuple(dict.fromkeys((min(SHORT_WINDOW, longest), longest)))


# Test inputs

def probe_text(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """States and log durations of symbols that nearly fill the bucket."""
    length = probed_length(model, bucket["symbols"])
    ids = rng.integers(1, model.config("fastspeech").embeddings, (1, length))
    encoded = backend.run("text", ids=ids, mask=np.ones((1, length), np.float32))
    return [encoded[..., :-1], encoded[..., -1:]]


def probe_mel(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """The mel of states that are repeated unevenly, in frames that nearly fill the bucket."""
    frames, symbols = probed_length(model, bucket["frames"]), max(bucket["symbols"] - MISSING, 1)
    counts = rng.multinomial(frames, np.full(symbols, 1 / symbols))[None]
    states = rng.standard_normal((1, symbols, model.config("fastspeech").d_model), dtype=np.float32)
    return [backend.run("mel", states=states, alignment=alignment_matrix(counts, frames),
                        mask=np.ones((1, frames), np.float32))]


def probed_length(model: Model, bucket: int) -> int:
    """A little less than the bucket; all of it where padding changes the result, as with NVIDIA's class."""
    config = model.config("fastspeech")
    return min(bucket if config.padding == "published" else max(bucket - MISSING, 1), config.max_seq_len)


def probe_vocoder(backend: Backend, model: Model, bucket: Mapping[str, int],
                  rng: np.random.Generator) -> list[np.ndarray]:
    """The sound of a mel that nearly fills the bucket."""
    bands = model.config("vocoder").num_mels
    return [backend.run("vocoder", mel=rng.standard_normal((1, bands, bucket["frames"] - 1), dtype=np.float32))]


# ONNX graphs: the reference networks, batch first; named axes have any length

class StoredPositions(nn.Module):
    """``PositionEncoding`` with a slice of a table, since a graph cannot compute it for a dynamic length."""

    table: Tensor

    def __init__(self, positions: int, width: int, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("table", position_table(positions, width).to(dtype), persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.table[:x.shape[1]] * mask


class ExplicitAttention(nn.Module):
    """``HeadAttention`` in its parts: ONNX Runtime's operator takes no mask that is the same for all queries."""

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


onnx_text = traced(lambda network, ids, mask: network.text(ids, mask), ("encoded",), lambda network, dtype: {
    "ids": (torch.ones((2, 13), dtype=torch.int64), {0: "batch", 1: "symbols"}),
    "mask": (torch.ones((2, 13), dtype=dtype), {0: "batch", 1: "symbols"})})
onnx_mel = traced(lambda network, *inputs: network.mel(*inputs), ("mel",), lambda network, dtype: {
    "states": (noise(2, 13, network.config.d_model).to(dtype), {0: "batch", 1: "symbols"}),
    "alignment": (torch.zeros((2, 13, 29), dtype=dtype), {0: "batch", 1: "symbols", 2: "frames"}),
    "mask": (torch.ones((2, 29), dtype=dtype), {0: "batch", 1: "frames"})})
onnx_vocoder = traced(network_call, ("sound",), lambda network, dtype: {
    "mel": (noise(2, network.config.num_mels, 19), {0: "batch", 2: "frames"})})


# The activations that NVIDIA's verify_trt.py compares, by its names (DeepLearningExamples, CUDA-Optimized/FastSpeech).
# The example stores references and goes on in place, so its ``conv2`` holds the residual too and its ``ln`` is masked.
# Here the names stand for what they say: ``conv2`` is the convolution's output, ``ln`` the norm's before the mask.

# in the order of computation; the path of the module that returns it, inside a block
LAYER = {"slf_attn.linear": "slf_attn.linear", "slf_attn.scaled_dot": "slf_attn.attention",
         "slf_attn.residual": "slf_attn.residual", "slf_attn.ln": "slf_attn.layer_norm", "pos_ffn.conv1": "pos_ffn.w_1",
         "pos_ffn.conv2": "pos_ffn.w_2", "pos_ffn.residual": "pos_ffn.residual", "pos_ffn.ln": "pos_ffn.layer_norm"}


def published_names(kind: str, config: FastSpeechConfig) -> Mapping[str, tuple[str, ...]]:
    """``ConvertibleModel.published_names`` of "text" and "mel".

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


# random weights at the official size reach 61 dB, with rounding 58
ACOUSTIC = {"fp16": (55.0, 45.0)}

FUNCTIONS = (
    Function("text", "fastspeech", probe_text, onnx=onnx_text, onnx_lengths={"symbols": 40},
             coreml=lambda r: [acoustic.text(r.network, size) for size in r.lengths("text")],
             buckets={"text": Bucket("symbols", 8, lambda model: up_to(positions(model), SYMBOLS), positions)},
             outputs={"states": "phoneme_side", "log_durations": "length_regulator.duration_predictor.linear_layer"},
             thresholds=ACOUSTIC),
    Function("mel", "fastspeech", probe_mel, onnx=onnx_mel, onnx_lengths={"frames": 90, "symbols": 30},
             # it is called with the states of a text in any bucket
             coreml=lambda r: [acoustic.mel(r.network, size, max(r.lengths("text"))) for size in r.lengths("mel")],
             buckets={"mel": Bucket("frames", 8, lambda model: up_to(positions(model), FRAMES), positions)},
             outputs={"mel": "mel_linear"}, thresholds=ACOUSTIC),
    Function("vocoder", "vocoder", probe_vocoder, onnx=onnx_vocoder, onnx_lengths={"frames": 30},
             coreml=lambda r: [hifigan(r.network, size, "vocoder") for size in r.lengths("vocoder")],
             buckets={"vocoder": Bucket("frames", 4, vocoder_windows, lambda model: max(vocoder_windows(model)))},
             # as Tortoise's HiFi-GAN
             outputs={"sound": ""}, thresholds={"fp16": (60.0, 45.0)}),
)
MODEL = ConvertibleModel("ane.models.fastspeech.networks", FUNCTIONS, before_tracing=make_traceable,
                         published_names=published_names)
