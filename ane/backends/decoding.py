"""Define the contract of autoregressive networks: a decoder whose kv-cache the backend keeps."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of an autoregressive network.

    Attributes:
        layers: Number of transformer layers.
        heads: Number of attention heads per layer.
        head_width: Channels of a head.
        width: Channels of a column (one embedded input position) and of a hidden state.
        vocabulary: Number of tokens.
        memory_length: Number of positions that each column cross-attends to. 0 means no cross-attention.
    """

    layers: int
    heads: int
    head_width: int
    width: int
    vocabulary: int
    memory_length: int = 0


class Decoder(ABC):
    """An autoregressive network with its kv-cache, which decodes several sequences (lanes) in one call.

    Each lane continues one of the stored prefixes. The positions of a lane after its prefix are its own positions. The
    decoder does not record how long a lane is. With the ``lengths`` of a call, the caller rewinds, resets or refills a
    lane, and with the ``prefix_indices`` it moves the lane to another prefix.

    Attributes:
        lanes: Number of lanes.
        capacity: Number of own positions that each lane has room for.
        prefixes: Number of prefixes that can be stored.
        recorded: Attention scores of the last call, (n, heads, P) float32, for its n lanes (a prefill has one) and the
            heads that ``record`` named. They are q·k / √head_width of the last column, before the softmax. P is at
            least the length of the longest prefix in use. Ignore the values after the end of a lane's prefix.
        copies_lanes: Whether ``copy_lanes`` works.
    """

    lanes: int
    capacity: int
    prefixes: int
    recorded: np.ndarray
    copies_lanes = False

    @abstractmethod
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Store a prefix at ``index``, in place of an earlier one. Lanes of other prefixes are not affected.

        Args:
            prefix: Columns (P, D) float32.
            index: Index of the prefix, below ``prefixes``.

        Returns:
            Hidden state (D,) and logits (V,) of the last position, float32.
        """

    @abstractmethod
    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append columns to the lanes ``first_lane`` … ``first_lane + n − 1``.

        Column t of a lane is at the lane's own position length + t. It attends to the lane's prefix, to the lane's
        earlier positions and to itself.

        Args:
            columns: T columns for each of n lanes, (n, T, D) float32.
            lengths: Number of own positions that each of these lanes already has, (n,) int64.
            first_lane: Index of the first lane.
            prefix_indices: Index of the prefix that each lane continues, (n,) int64. ``None`` means that all lanes
                continue prefix 0.

        Returns:
            Hidden states (n, T, D), and logits (n, V) of the last column, both float32.
        """

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        """Store the memory that columns cross-attend to, such as the output of an encoder.

        Call it before the prefill of the prefix at ``index``. It computes the keys and values of the memory once. All
        lanes that continue this prefix attend to them. They stay when another prefix is stored at ``index``.

        Args:
            memory: Memory (``DecoderShape.memory_length``, D) float32.
            index: Index of the prefix.
        """
        raise NotImplementedError  # not called if ``memory_length`` is 0

    def record(self, heads: Sequence[tuple[int, int]]) -> bool:
        """Record the scores of these heads from the next call on. Return whether this decoder can.

        Args:
            heads: (layer, head) pairs, in ascending order.
        """
        return False

    def copy_lanes(self, sources: np.ndarray, length: int) -> None:
        """Copy the first ``length`` own positions of lane ``sources[i]`` to lane i, for all i at once.

        Args:
            sources: Index of the lane to copy from, (n,) int64, with n at most ``lanes``. The next step says which
                prefix each of the n lanes continues.
            length: Number of positions to copy.
        """
        raise NotImplementedError  # not called without ``copies_lanes``


def check_step(decoder: Decoder, columns: np.ndarray, lengths: np.ndarray, first_lane: int) -> int:
    """Return the end of the positions that a step writes. Raises ValueError beyond the lanes or the capacity."""
    lanes, columns_per_lane, _ = columns.shape
    end = int(lengths.max()) + columns_per_lane
    if end > decoder.capacity or first_lane + lanes > decoder.lanes:
        raise ValueError(
            f"a decoder of {decoder.lanes} lanes × {decoder.capacity} positions got lane "
            f"{first_lane + lanes - 1}, position {end - 1}"
        )
    return end
