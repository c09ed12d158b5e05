"""Define the interface of an autoregressive network: a decoder whose kv-cache the backend keeps."""

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
    """An autoregressive network and its kv-cache. One call decodes several sequences, which are called lanes.

    Each lane continues one of the stored prefixes. The positions of a lane that follow its prefix are the lane's *own*
    positions. The decoder does not know how many of them a lane has: the caller passes this number as ``lengths`` of
    ``step``. A smaller number rewinds the lane, and 0 clears it. With ``prefix_indices``, the caller moves a lane to
    another prefix.

    Attributes:
        lanes: Number of lanes.
        capacity: Number of positions after its prefix that each lane can hold.
        prefixes: Number of prefixes that the decoder can store.
        recorded: Attention scores of the last call, (n, heads, P) float32, where n is the number of lanes in the call
            (1 for ``prefill``) and heads are those passed to ``record``. A score is q·k / √head_width of the last
            column, before the softmax. P is at least the length of the longest prefix in use. Ignore the scores after
            the end of a lane's prefix.
        copies_lanes: Whether ``copy_lanes`` works.
    """

    lanes: int
    capacity: int
    prefixes: int
    recorded: np.ndarray
    copies_lanes = False

    @abstractmethod
    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Compute a prefix, and store its keys and values at ``index``, where they replace an earlier prefix.

        Lanes that continue other prefixes do not change.

        Args:
            prefix: Columns (P, D) float32.
            index: Index at which to store the prefix, less than ``prefixes``.

        Returns:
            Hidden state (D,) and logits (V,) of the prefix's last position, both float32.
        """

    @abstractmethod
    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decode T new columns on each of n lanes (sequences), from ``first_lane`` to ``first_lane + n − 1``.

        A column is an input vector. Column t of a lane takes position ``length + t`` after the lane's prefix. The
        column attends to the lane's prefix, to the lane's earlier positions and to itself.

        Args:
            columns: T columns for each of n lanes, (n, T, D) float32.
            lengths: Number of positions after its prefix that each of the n lanes already has, (n,) int64.
            first_lane: Index of the first lane.
            prefix_indices: Index of the prefix that each lane continues, (n,) int64. ``None`` means that all lanes
                continue prefix 0.

        Returns:
            Hidden states (n, T, D), and logits (n, V) of the last column, both float32.
        """

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        """Store a memory: an array, such as an encoder's output, to which columns (decoder inputs) cross-attend.

        Call this method before you call ``prefill`` with the same ``index``. The method computes the memory's keys and
        values once. All lanes (sequences) that continue the prefix at ``index`` attend to this memory. A later
        ``prefill`` at ``index`` keeps the memory.

        Args:
            memory: Memory (``DecoderShape.memory_length``, D) float32.
            index: Index of the prefix.
        """
        raise NotImplementedError  # nobody calls this if ``memory_length`` is 0

    def record(self, heads: Sequence[tuple[int, int]]) -> bool:
        """Let all later calls store the attention scores of these heads in ``recorded``.

        Returns ``False`` if this decoder cannot record scores.

        Args:
            heads: (layer, head) pairs, in ascending order.
        """
        return False

    def copy_lanes(self, sources: np.ndarray, length: int) -> None:
        """Copy the first ``length`` positions after the prefix of lane ``sources[i]`` to lane i, for every i.

        A lane is a sequence of the decoder's batch. All lanes are copied together, so that no lane reads a lane that
        was already overwritten.

        Args:
            sources: For each of the first n lanes, the index of the lane to copy from, (n,) int64. The copy does not
                include the prefix: pass the ``prefix_indices`` of these lanes to the next ``step``.
            length: Number of positions to copy.
        """
        raise NotImplementedError  # nobody calls this unless ``copies_lanes`` is true


def check_step(decoder: Decoder, columns: np.ndarray, lengths: np.ndarray, first_lane: int) -> int:
    """Return how many positions the longest lane (sequence) will have when a step is done, not counting its prefix.

    Raises:
        ValueError: The step needs more lanes than the decoder has, or more positions than its capacity.
    """
    lanes, columns_per_lane, _ = columns.shape
    end = int(lengths.max()) + columns_per_lane
    if end > decoder.capacity or first_lane + lanes > decoder.lanes:
        raise ValueError(
            f"this decoder has {decoder.lanes} lanes of {decoder.capacity} positions, got "
            f"lane {first_lane + lanes - 1} and position {end - 1} (counted from 0)"
        )
    return end
