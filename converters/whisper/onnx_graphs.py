"""The ONNX graphs of Whisper's networks: calls, inputs, outputs and dynamic axes.

The reference networks themselves are traced, batch first; the decoder's calls are in
``converters.whisper.onnx_decoder``.
"""

import torch
from torch import nn

from converters.onnx.graph import NetworkCall, OnnxGraph
from converters.whisper import onnx_decoder as decoder


def graphs_of(network: str, reference: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    """The graphs of a network whose reference computes in ``dtype``."""
    return GRAPHS[network](reference, dtype)


def _encoder(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    mel = torch.zeros(2, network.config.n_mels, 2 * network.config.n_audio_ctx)
    return [OnnxGraph("encoder", NetworkCall(network, lambda network, mel: network(mel)), {"mel": mel},
                      {"mel": {0: "batch"}}, ("states",))]


def _decoder(network: nn.Module, dtype: torch.dtype) -> list[OnnxGraph]:
    config, new = network.config, ("hidden", "logits", "new_keys", "new_values")
    return [
        OnnxGraph("memory", NetworkCall(network, decoder.memory), *decoder.memory_examples(config),
                  ("keys", "values")),
        OnnxGraph("prefill", NetworkCall(network, decoder.prefill), *decoder.prefill_examples(config, dtype),
                  ("hidden", "logits", "keys", "values")),
        OnnxGraph("step", NetworkCall(network, decoder.step), *decoder.step_examples(config, dtype, shared=True), new),
        OnnxGraph("step_prefixes", NetworkCall(network, decoder.step_prefixes),
                  *decoder.step_examples(config, dtype, shared=False), new),
    ]


GRAPHS = {"encoder": _encoder, "decoder": _decoder}
