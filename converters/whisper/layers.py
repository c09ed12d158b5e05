"""Layers that the Core ML graphs of encoder and decoder share; reference: ``ane.models.whisper.networks.layers``."""

from torch import nn

from ane.models.whisper.networks.layers import WhisperAttention
from converters import blocks
from converters.coreml.graph import Style, Var, mb


def queries(s: Style, x: Var, attention: WhisperAttention) -> Var:
    """(1, D, 1, S), divided by √width."""
    return blocks.linear(s, x, attention.query, scale=(attention.query.out_features // attention.heads) ** -0.5)


def projections(s: Style, x: Var, attention: WhisperAttention) -> tuple[Var, Var, Var]:
    """Queries, keys and values (1, D, 1, S); the queries are divided by √width."""
    return queries(s, x, attention), blocks.linear(s, x, attention.key), blocks.linear(s, x, attention.value)


def feed_forward(s: Style, x: Var, layers: nn.Sequential, scale: float, name: str) -> Var:
    """Two linear layers with the exact GELU between them; the output is multiplied by ``scale``."""
    first, _, last = layers
    y = mb.gelu(x=blocks.linear(s, x, first, f"{name}.0"), mode="EXACT")
    return blocks.linear(s, y, last, f"{name}.2", scale)
