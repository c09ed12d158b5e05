"""One pass of a decoder with cross-attention over known columns, which records what chosen heads attend to."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class RecordedAttention:
    """Cross-attention that keeps its scores.

    Args:
        memory: keys and values (1, heads, N, w) of each layer. heads: (layer, head) whose scores are kept.
    """

    def __init__(self, memory: Sequence[tuple[Tensor, Tensor]], heads: Sequence[tuple[int, int]]):
        self.memory, self.heads = memory, heads
        self._recorded: dict[tuple[int, int], Tensor] = {}

    def attend(self) -> list[Callable[[Tensor], Tensor]]:
        """A function q (1, heads, T, w) → output of the same shape for each layer."""
        def cross(layer: int, q: Tensor) -> Tensor:
            keys, values = self.memory[layer]
            for head in (head for at, head in self.heads if at == layer):
                query = q[0, head].float() * q.shape[-1] ** -0.5
                self._recorded[layer, head] = query @ keys[0, head].float().T
            return F.scaled_dot_product_attention(q, keys, values)

        return [lambda q, layer=layer: cross(layer, q) for layer in range(len(self.memory))]

    def scores(self) -> Tensor:
        """(heads, T, N) float32, in the order of ``heads``."""
        return torch.stack([self._recorded[key] for key in self.heads])


def aligned_pass(network: Any, columns: Tensor, memory: Tensor,
                 heads: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Columns (T, D) and a memory (N, D), float32 → logits (T, V) and scores (heads, T, N), float32."""
    recorded = RecordedAttention(network.memory(memory[None]), heads)
    hidden = network(columns[None], None, recorded.attend())
    return network.logits(hidden)[0], recorded.scores()
