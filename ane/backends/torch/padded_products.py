"""Choose the positions and the rows that a decoder multiplies, so that no lane changes the bits of another lane.

A math library chooses a kernel by the shapes of a product, and its kernels add in different orders. The code therefore
pads products to shapes that do not depend on other lanes:

* A product with a prefix has ``padded_rows`` rows, and a sum over at most ``BLOCK`` positions.
* A lane reads its positions up to a multiple of ``POSITIONS``. A mask hides the surplus positions, so they add exact
  zeros.

The bits are equal on the CPU for networks with more than one head and for up to 191 rows per prefix. To check this
claim on a machine, run ``python -m benchmarks exactness``.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

POSITIONS = 16  # the widest vectors have 16 floats, so a softmax adds every sixteenth position
FEWEST_POSITIONS = 48  # MKL on Intel's CPUs adds in another order if a product has fewer positions
BLOCK = 192  # MKL (with AVX2, and on Intel's CPUs) splits a longer sum in a way that depends on its length
# number of rows to add, by the number of rows modulo 6, because MKL with AVX2 adds in one order for blocks of six or
# four rows, and in another order for smaller blocks
ROWS_ADDED = 0, 3, 2, 1, 0, 1


def padded_positions(positions: int, head_width: int) -> int:
    """Return how many positions of a lane (sequence) to read so that a sum has the same bits as over ``positions``.

    The number is at least the width of a head, because MKL uses other kernels for smaller products.
    """
    return -(-max(positions, head_width, FEWEST_POSITIONS) // POSITIONS) * POSITIONS


def prefix_positions(positions: int, head_width: int, rows: int) -> int:
    """Return how many positions of a prefix (prompt) to read.

    ``weighted_sum`` then has the same bits as over ``positions``. ``weighted_sum`` works in blocks of positions. The
    last block has more positions than there are ``rows``, because MKL uses other kernels for smaller products.
    """
    whole = max(positions - 1, 0) // BLOCK * BLOCK
    return whole + min(padded_positions(max(positions - whole, rows + 1), head_width), BLOCK)


def padded_rows(rows: int, head_width: int) -> int:
    """Return how many rows to use in a product with a prefix (prompt), so that no row's bits depend on other rows."""
    rows = max(rows, head_width // 16)
    return rows + ROWS_ADDED[rows % 6]


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights (n, rows, positions) by values (n, positions, w), in blocks of at most ``BLOCK`` positions."""
    total = weights[:, :, :BLOCK] @ values[:, :BLOCK]
    for start in range(BLOCK, values.shape[1], BLOCK):
        total += weights[:, :, start : start + BLOCK] @ values[:, start : start + BLOCK]
    return total


def mask_after(lengths: np.ndarray, positions: int, like: Tensor) -> Tensor:
    """Create a mask to add to attention scores: 0 for the first ``lengths`` positions, and −∞ for all later ones.

    Args:
        lengths: Numbers of positions that the mask does not hide, of any shape (…).
        positions: Number of positions in the mask.
        like: Tensor that has the dtype and device for the mask.

    Returns:
        Mask (…, positions).
    """
    masked = torch.from_numpy(np.arange(positions) >= lengths[..., None]).to(like.device)
    return torch.zeros(masked.shape, device=like.device, dtype=like.dtype).masked_fill(masked, float("-inf"))


class LanesByPrefix:
    """The lanes of a call, grouped by their prefix, so that all lanes of a prefix are rows of one matrix product.

    Args:
        indices: Index of each lane's prefix, (n,).
        columns: Number T of new columns per lane.
        prefix_lengths: Number of positions in each prefix.
        capacity: Number of positions that the cache has per prefix.
        like: Cache of one layer, (…, heads, positions, head_width). The masks take their sizes, dtype and device from
            it.

    Attributes:
        longest: Number of positions to read from each prefix.
        padding: Number of rows of zeros to add after the rows of a prefix's lanes.
        mask: Mask (1 or prefixes·heads, 1, longest) for products with prefixes.
    """

    def __init__(self, indices: np.ndarray, columns: int, prefix_lengths: list[int], capacity: int, like: Tensor):
        self.count, self.columns, self.heads = len(indices), columns, like.shape[1]
        self.low, self.high = int(indices.min()), int(indices.max()) + 1
        lengths = np.array(prefix_lengths[self.low : self.high])
        groups = [np.flatnonzero(indices == index) for index in range(self.low, self.high)]
        most = max(map(len, groups))
        width, rows = like.shape[-1], most * columns
        self.padding = padded_rows(rows, width) - rows
        self.longest = min(prefix_positions(int(lengths.max()), width, rows + self.padding), capacity)
        self.mask = mask_after(lengths[:, None], self.longest, like)  # (prefixes, 1, longest)
        self.gather = self.scatter = None
        if len(lengths) == 1:
            return
        self.mask = self.mask.repeat_interleave(self.heads, dim=0)
        # groups with fewer lanes are filled with lane 0, whose results there are not used
        order = np.stack([np.pad(lanes, (0, most - len(lanes))) for lanes in groups])  # (prefixes, most)
        row = np.empty(self.count, dtype=np.int64)
        for lanes in groups:
            row[lanes] = np.arange(len(lanes))
        # ``gather`` indexes an array (n, heads, T, w), and ``scatter`` an array (prefixes, heads, rows, T, w)
        self.gather, self.scatter = (
            tuple(torch.from_numpy(index).to(like.device) for index in indexing)
            for indexing in (
                (order[:, None], np.arange(self.heads)[:, None]),
                ((indices - self.low)[:, None], np.arange(self.heads), row[:, None]),
            )
        )

    def read(self, cache: Tensor) -> Tensor:
        """Select the positions to read, (prefixes·heads, longest, w), from a cache (prefixes, heads, capacity, w)."""
        return cache[self.low : self.high, :, : self.longest].flatten(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        """Reorder x from (n, heads, T, w) to (prefixes·heads, rows, w).

        Lanes (sequences) with the same prefix (prompt) become adjacent rows.
        """
        n, heads, T, width = x.shape
        x = (
            x.transpose(0, 1).reshape(heads, n * T, width)
            if self.gather is None
            else x[self.gather].flatten(0, 1).flatten(1, 2)
        )
        return F.pad(x, (0, 0, 0, self.padding)) if self.padding else x

    def lanes(self, x: Tensor) -> Tensor:
        """Reorder x from (prefixes·heads, rows, w) to (n, heads, T, w). This is the inverse of ``rows``."""
        x = x[:, : x.shape[1] - self.padding].unflatten(1, (-1, self.columns))
        return x.transpose(0, 1) if self.scatter is None else x.unflatten(0, (-1, self.heads))[self.scatter]


class LanePositions:
    """The lanes' own positions in a call: the positions of new columns, and the positions that a column attends to.

    Args:
        lanes: Indices of the n lanes.
        lengths: Number of positions after its prefix that each lane already has, (n,).
        columns: Number T of new columns per lane.
        like: Cache of one layer, (…, heads, positions, head_width). The masks take their sizes, dtype and device from
            it.

    Attributes:
        position: Position of each new column, (n, T). ``None`` means that in all lanes the new columns have the
            positions ``start`` to ``stop − 1``.
        end: Number of positions to read from each lane.
        mask: Mask (1 or n·heads, end, T) for products with the lanes' own positions.
    """

    def __init__(self, lanes: slice, lengths: np.ndarray, columns: int, like: Tensor):
        self.lanes, self.start, self.stop = lanes, int(lengths.min()), int(lengths.max()) + columns
        self.end = padded_positions(self.stop, like.shape[-1])
        same_length = self.start + columns == self.stop
        position = (lengths[:1] if same_length else lengths)[:, None] + np.arange(columns)
        self.position = None if same_length else torch.from_numpy(position).to(like.device)
        self.mask = mask_after(position + 1, self.end, like)  # (1 or n, T, end)
        if not same_length:
            self.mask = self.mask.repeat_interleave(like.shape[1], dim=0)
        self.mask = self.mask.transpose(1, 2)

    def write(self, cache: Tensor, new: Tensor) -> Tensor:
        """Write new keys or values (n, heads, T, w) into a cache (n, heads, capacity, w).

        Returns:
            The positions to read from the cache, (n·heads, end, w).
        """
        if self.position is None:
            cache[:, :, self.start : self.stop] = new
        else:
            rows = torch.arange(len(cache), device=cache.device)[:, None]
            cache[rows, :, self.position] = new.transpose(1, 2)
        return cache[:, :, : self.end].flatten(0, 1)
