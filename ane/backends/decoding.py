"""The contract of autoregressive networks: a decoder whose kv-cache the backend keeps."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DecoderShape:
    """Size of an autoregressive network."""

    layers: int
    heads: int
    head_width: int
    width: int  # of a column (one embedded input position) and of a hidden state
    vocabulary: int  # number of tokens
    memory_length: int = 0  # positions that each column cross-attends to; 0: no cross-attention


class Decoder(ABC):
    """An autoregressive network with its kv-cache, which decodes several sequences (lanes) in one call.

    Each lane continues one of the stored prefixes. The decoder does not record how long a lane is: the ``lengths`` that
    the caller passes rewind, reset or refill a lane, and the ``prefix_indices`` move it to another prefix.

    Attributes:
        lanes: number of lanes. capacity: positions of each lane after its prefix (its own positions).
        prefixes: number of prefixes that can be stored.
        recorded: of the last call, for each of its lanes (a prefill has one) and each of the heads that ``record``
            named, the scores q·k / √head_width of the last column before the softmax, (n, heads, P) float32.
            P is at least the length of the longest prefix in use; what follows a lane's own prefix has no meaning.
        copies_lanes: whether ``copy_lanes`` works.
    """

    lanes: int
    capacity: int
    prefixes: int
    recorded: np.ndarray
    copies_lanes = False

    @abstractmethod
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Store a prefix at ``index``, in place of the one stored there; lanes of other prefixes are unaffected.

        (P, D) float32 → hidden (D,), logits (V,) of its last position.
        """

    @abstractmethod
    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append ``columns`` (n, T, D) float32 to the lanes ``first_lane`` … ``first_lane + n − 1``, T to each.

        ``lengths`` (n,) int64 is the number of own positions that each of these lanes has, ``prefix_indices`` (n,)
        int64 the prefix that each attends to (None: all attend to prefix 0). Column t of a lane is at its own position
        length + t and attends to its prefix, the lane's positions before it, and itself.
        Returns hidden (n, T, D) and logits (n, V) of the last column, both float32.
        """

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        """Store the memory (``DecoderShape.memory_length``, D) float32 of the prefix at ``index``, before its prefill.

        It is what columns cross-attend to, such as the output of an encoder. Its keys and values are computed once,
        here. All lanes that continue this prefix attend to them; they stay when another prefix is stored at ``index``.
        """
        raise NotImplementedError  # nobody calls it where ``memory_length`` is 0

    def record(self, heads: Sequence[tuple[int, int]]) -> bool:
        """Record these heads, (layer, head) in ascending order, from the next call on. False: this decoder cannot."""
        return False

    def copy_lanes(self, sources: np.ndarray, length: int) -> None:
        """Lane i of the first ones gets the first ``length`` own positions of lane ``sources[i]``, all at once.

        ``sources`` (n,) int64 with n at most ``lanes``; each of these lanes attends to the prefix that the next step
        names for it.
        """
        raise NotImplementedError  # nobody calls it without ``copies_lanes``


def check_step(decoder: Decoder, columns: np.ndarray, lengths: np.ndarray, first_lane: int) -> int:
    """One past the last own position that a step writes. ValueError beyond the decoder's lanes or capacity."""
    lanes, columns_per_lane, _ = columns.shape
    end = int(lengths.max()) + columns_per_lane
    if end > decoder.capacity or first_lane + lanes > decoder.lanes:
        raise ValueError(
            f"a decoder of {decoder.lanes} lanes × {decoder.capacity} positions got lane "
            f"{first_lane + lanes - 1}, position {end - 1}"
        )
    return end
