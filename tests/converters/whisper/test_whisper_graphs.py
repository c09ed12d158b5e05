"""Compare Whisper's Core ML graphs, which the interpreter runs, with ``ane.models.whisper.networks``."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ane.backends.mil.interpreter import Arithmetic
from ane.backends.packaged.decoder import joined_logits
from ane.bundles.family import find_family
from ane.models.whisper.networks import WhisperDecoder, WhisperDecoderConfig, WhisperEncoder, WhisperEncoderConfig
from ane.system.decibels import snr_db
from converters.coreml.coreml_package import CoreMLOptions, check_options
from converters.coreml.graph import CoreMLGraph, Style
from converters.function_table import GraphRequest, coreml_graphs
from converters.neural_engine import MAX_AXIS
from converters.whisper.graphs import QUERIES, attend_to_all, decoder_graphs, decoder_scale, encoder, encoder_scale
from converters.whisper.whisper_functions import prefill_columns
from tests.backends.packaged.packages import FP16, FP32, NARROW, functions, saved
from tests.refusals import assert_refused


def randomised(network: nn.Module, size: float = 0.3) -> nn.Module:
    """Random weights, and gains and shifts of norms that are not 1 and 0."""
    generator = torch.Generator().manual_seed(0)
    for key, tensor in network.state_dict().items():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * size + ("ln" in key and key.endswith("weight")))
    return network.eval().requires_grad_(False)


def decoder(vocabulary: int = 100, width: int = 16) -> WhisperDecoder:
    return randomised(WhisperDecoder(WhisperDecoderConfig(vocabulary, 24, 64, width, 2, 2)))


def run(graph: CoreMLGraph, style: Style, folder: Path, arithmetic=FP16, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    (function,) = functions([graph], saved([graph], style, folder), arithmetic)
    return function(**inputs)


def decoder_inputs(network: WhisperDecoder, columns: int) -> tuple[dict[str, np.ndarray], torch.Tensor, torch.Tensor]:
    """The inputs of a prefill; the columns (1, T, D) and the memory's states (1, N, D)."""
    config, generator = network.config, torch.Generator().manual_seed(1)
    x = torch.randn(1, columns, config.n_text_state, generator=generator)
    states = torch.randn(1, config.n_audio_ctx, config.n_text_state, generator=generator)
    memories = [torch.cat(part).transpose(2, 3).numpy() for part in zip(*network.memory(states), strict=True)]
    mask = np.where(np.tri(columns, dtype=bool), 0, -1e4).astype(np.float32)[None, None]
    return (
        {
            "x": x.transpose(1, 2)[:, :, None].numpy(),
            "mask": mask,
            "memory_keys": memories[0],
            "memory_values": memories[1],
        },
        x,
        states,
    )


def reference(network: WhisperDecoder, x: torch.Tensor, states: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states (T, D) and logits (T, V)."""
    cross = [partial(F.scaled_dot_product_attention, key=k, value=v) for k, v in network.memory(states)]
    hidden = network(x, None, cross)
    return hidden[0].numpy(), network.logits(hidden)[0].numpy()


@pytest.mark.parametrize("vocabulary", [51864, 51865])
def test_a_head_in_parts_gives_the_logits_of_every_column(tmp_path, vocabulary):
    network = decoder(vocabulary, width=4)
    inputs, x, states = decoder_inputs(network, 3)
    outputs = run(decoder_graphs(network).prefill(3), FP32, tmp_path, **inputs)
    assert max(max(output.shape) for output in outputs.values()) <= MAX_AXIS
    logits = joined_logits(outputs, slice(3))
    assert logits.shape == (3, vocabulary)
    assert snr_db(reference(network, x, states)[1], logits) >= 100


def test_many_subnormal_weights_of_attention_may_be_flushed(tmp_path):
    """As in trained encoders: one position gets most of the attention, 1500 others 5e-5 each, 7 % in all."""
    N, width = 1500, 16
    q, k = np.zeros((2, 1, width, 1, N), np.float32)
    q[:, 0], k[:, 0, :, 7] = 1, np.log(20000)
    v = 1 + 0.3 * np.random.default_rng(0).standard_normal((1, width, 1, N)).astype(np.float32)
    graph = CoreMLGraph(
        "attention",
        {},
        {"q": q.shape, "k": k.shape, "v": v.shape},
        lambda style, q, k, v: {"y": attend_to_all(style, q, k, v, heads=1)},
    )
    attended = run(graph, Style(), tmp_path, Arithmetic(fp16=True, flush=True), q=q, k=k, v=v)["y"]
    weight = np.exp(k[0, 0, 0]) / np.exp(k[0, 0, 0]).sum()
    assert np.median(weight) < 6e-5
    assert weight.sum() - weight.max() > 0.06
    assert snr_db(np.repeat(v @ weight[:, None], N, axis=3), attended) >= 45


def model_of(config: WhisperDecoderConfig) -> SimpleNamespace:
    return SimpleNamespace(
        name="small", family=find_family("whisper"), networks={"encoder", "decoder"}, config=lambda network: config
    )


def requested(lanes: tuple[int, ...]) -> GraphRequest:
    network = decoder()
    return GraphRequest(network, model_of(network.config), lanes, ("io", "state"), {})


def test_no_graph_but_the_memory_projects_the_windows_states(tmp_path):
    """A step that took the states would compute keys and values of all their positions at every token."""
    for graph in coreml_graphs("decoder", requested((1, 4))):
        assert ("states" in graph.inputs) == (graph.kind == "memory")
        assert ("memory_keys" in graph.inputs) == (graph.kind not in ("memory", "store"))


def test_an_encoder_with_more_positions_than_a_block_of_queries(tmp_path):
    network = randomised(WhisperEncoder(WhisperEncoderConfig(10, QUERIES + 44, 16, 2, 2)))
    mel = torch.randn(1, 10, 2 * (QUERIES + 44), generator=torch.Generator().manual_seed(2))
    states = run(encoder(network), FP32, tmp_path, mel=mel[:, :, None].numpy())["states"]
    assert snr_db(network(mel)[0].T.numpy(), states[0, :, 0]) >= 100


def test_large_residual_streams_are_scaled(tmp_path):
    """As those of trained networks, whose squares overflow in fp16."""
    network = randomised(WhisperEncoder(WhisperEncoderConfig(10, 20, 16, 2, 2)))
    network.positional_embedding[:, 3] = 3000
    scale = encoder_scale(network)
    assert scale == 1 / 64
    mel = torch.randn(1, 10, 40, generator=torch.Generator().manual_seed(2))
    states = run(encoder(network, scale), Style(), tmp_path, NARROW, mel=mel[:, :, None].numpy())["states"]
    assert snr_db(network(mel)[0].T.numpy(), states[0, :, 0]) >= 40
    text = decoder()
    assert decoder_scale(text) == 1
    text.positional_embedding[:, 3] = 3000
    assert decoder_scale(text) < 1


def test_default_lengths_hold_the_longest_prompt_and_all_positions():
    assert prefill_columns(model_of(WhisperDecoderConfig())) == (16, 64, 256)
    graphs = coreml_graphs("decoder", requested((1, 8)))
    assert [graph.name for graph in graphs] == [
        "memory_24",
        "prefill_16",
        "prefill_64",
        "step_1_128",
        "step_8_576",
        "state_1_128_128",
        "state_8_576_576",
        "store_32_128",
        "store_32_576",
    ]


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ({"prefill": (8,)}, "must be at least 16"),
        ({"prefill": (96,)}, "this model takes at most 64 columns"),
        ({"step": (20000,)}, "the Neural Engine takes no axis above"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(buckets, message):
    assert_refused(message, lambda: check_options(CoreMLOptions(buckets=buckets), model_of(decoder().config)))
