"""Store a decoder's keys and values in pools of slots, and run the functions that read and fill the slots.

A slot is free, or holds the keys and values of one position. The position belongs to a lane (a sequence) or to a
prefix, and a table says to which lane or prefix. The attention mask of a call lets a column attend to its prefix's
slots and to the slots with its lane's earlier positions. Slots may therefore be used in any order, and no data moves
when a lane is rewound or refilled, or when lanes share a prefix. Each call uses the smallest function that has enough
slots, so a longer text uses larger functions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ane.backends.base import MASKED
from ane.backends.packaged.functions import PackageFunction

FREE = -1  # owner of a free slot; a slot of a lane has the lane's index as its owner
FIRST_PREFIX = -2  # owner of the first prefix's slots; later prefixes have the owners −3, −4 and so on


@dataclass(eq=False)
class StoredPrefix:
    """A prefix that the decoder stores.

    Attributes:
        columns: Columns (P, D).
        memory: Inputs with the keys and values that the prefix and its lanes cross-attend to. An empty mapping means
            that the network has no cross-attention.
        keys: Keys (layers, heads, width, P). ``None`` means that no prefill function has computed the prefix.
        values: Values (layers, heads, width, P). ``None`` means that no prefill function has computed the prefix.
    """

    columns: np.ndarray
    memory: Mapping[str, np.ndarray]
    keys: np.ndarray | None = None
    values: np.ndarray | None = None


def joined_logits(outputs: Mapping[str, np.ndarray], columns: slice) -> np.ndarray:
    """Return the logits (n, V) of these columns (decoder inputs).

    Join the outputs logits_0, logits_1, … if the vocabulary is split.
    """
    names = sorted((name for name in outputs if name.startswith("logits")), key=lambda name: (len(name), name))
    return np.concatenate([outputs[name][0, :, 0, columns] for name in names]).T


def pack_columns(columns: np.ndarray, count: int, scale: float, dtype: type) -> np.ndarray:
    """Multiply columns (n, D) by ``scale``, and pad them to ``count`` columns, (1, D, 1, count).

    An idle lane (sequence) has columns of zeros. A norm of such a column would divide by zero, and the kv-cache would
    carry the NaN to other lanes. This function therefore fills columns of zeros and the padding with a ramp.
    """
    x: np.ndarray = np.empty((1, columns.shape[1], 1, count), dtype)
    x[0, :, 0, :] = np.linspace(-1, 1, columns.shape[1])[:, None] * scale
    nonzero = np.flatnonzero(columns.any(axis=1))
    x[0, :, 0, nonzero] = columns[nonzero] * scale
    return x


@dataclass(frozen=True)
class PoolSettings:
    """Settings that all pools of a decoder share.

    Attributes:
        stored: The decoder's prefixes, by index. If a prefix is no longer in this mapping, pools may free its slots.
        prefixes: Largest number of prefixes that the decoder stores.
        geometry: Number of layers, number of heads and head width of the network.
        scale: Factor by which to multiply columns.
        dtype: Dtype of the functions' inputs.
    """

    stored: Mapping[int, StoredPrefix]
    prefixes: int
    geometry: tuple[int, int, int]
    scale: float
    dtype: type


class SlotPool(ABC):
    """The kv-cache that some lanes of a decoder share, and the functions that read it. The cache consists of slots.

    A slot holds the keys and values of one position. The package's functions differ only in their number of slots. The
    arrays ``owner`` and ``position``, both (slots,), say whose position is in each slot. Subclasses store the keys and
    values.
    """

    def __init__(self, functions: Sequence[PackageFunction], lanes: int, settings: PoolSettings, recent: int = 0):
        self.functions = sorted(functions, key=lambda f: f.bucket["slots"])
        self.settings, self.lanes, self.columns = settings, lanes, functions[0].bucket["columns"]
        self.slots = self.functions[-1].bucket["slots"]
        self.owner = np.full(self.slots + recent, FREE)
        self.position = np.zeros(self.slots + recent, dtype=np.int64)
        self.prefixes: dict[StoredPrefix, int] = {}  # prefix in the pool → owner of the prefix's slots

    @abstractmethod
    def reserve(self, count: int) -> np.ndarray:
        """Return ``count`` free slots of the kv-cache.

        The next call stores the keys and values of its columns (inputs) in these slots.
        """

    @abstractmethod
    def slots_needed(self, visible: np.ndarray, reserved: np.ndarray) -> int:
        """Return how many slots of the kv-cache, from the first slot, a package's function must read in a call.

        Args:
            visible: Whether each column (input) attends to each slot, (columns, slots).
            reserved: Slots in which the call stores its columns.
        """

    @abstractmethod
    def call(
        self,
        function: PackageFunction,
        slots: np.ndarray,
        memory: Mapping[str, np.ndarray],
        inputs: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Run a package's function, and store the keys and values of its first ``len(slots)`` columns (inputs).

        Return its outputs.

        Args:
            function: Function to run.
            slots: Slots (cache positions) for the new keys and values, in the order of the columns.
            memory: Inputs with the keys and values to cross-attend to.
            inputs: All other inputs.
        """

    @abstractmethod
    def store_prefix(self, prefix: StoredPrefix, owner: int) -> None:
        """Store a prefix, whose keys and values are known, in free slots of the kv-cache.

        Mark these slots with ``owner``.
        """

    def prefill(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Compute a prefix (prompt), with as many columns (inputs) per call as possible, and store it.

        If the pool is full, it drops another prefix that is not in ``needed``.

        Returns:
            Hidden state (D,) and logits (V,) of the last position.
        """
        owner = self._admit(prefix, needed)
        for start in range(0, len(prefix.columns), self.columns):
            columns = prefix.columns[start : start + self.columns]
            n = len(columns)
            hidden, logits = self._run(
                columns,
                np.full(n, owner),
                start + np.arange(n),
                np.full(n, owner),
                np.full(n, start),
                np.tri(n, dtype=bool),
                prefix.memory,
            )
        return hidden[-1], logits[-1]

    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int, prefixes: Sequence[StoredPrefix]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append T columns (inputs) to each of n lanes (sequences) in this pool, beginning with lane ``first_lane``.

        Args:
            columns: Columns (n, T, D).
            lengths: Number of positions after its prefix that each lane already has, (n,).
            first_lane: Index of the first lane.
            prefixes: Prefix that each lane continues.

        Returns:
            Hidden states (n, T, D), and logits (n, V) of the last column.
        """
        for prefix in prefixes:
            if prefix not in self.prefixes:
                self._load_prefix(prefix, prefixes)
        for row, length in enumerate(lengths):  # a rewound lane drops its later positions
            self.owner[(self.owner == first_lane + row) & (self.position >= length)] = FREE
        owners = np.array([self.prefixes[prefix] for prefix in prefixes])
        memories = [prefix.memory for prefix in prefixes]
        groups = [
            np.array([row for row, other in enumerate(memories) if other is memory])
            for memory in {id(memory): memory for memory in memories}.values()
        ]
        parts = [
            self._step_lanes(columns[rows], lengths[rows], first_lane + rows, owners[rows], memories[rows[0]])
            for rows in groups
        ]
        order = np.argsort(np.concatenate(groups))
        hidden, logits = (np.concatenate(part)[order] for part in zip(*parts, strict=True))
        return hidden, logits

    def _step_lanes(
        self,
        columns: np.ndarray,
        lengths: np.ndarray,
        lanes: np.ndarray,
        prefixes: np.ndarray,
        memory: Mapping[str, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute ``step`` for n lanes (sequences) that all cross-attend to the same memory.

        Args:
            columns: Columns (n, T, D).
            lengths: Number of positions after its prefix that each lane already has, (n,).
            lanes: Indices of the lanes, (n,).
            prefixes: Owner number of each lane's prefix, (n,).
            memory: Inputs with the keys and values to cross-attend to.
        """
        n, T, D = columns.shape
        per_call = max(1, self.columns // n)  # positions per lane in one call
        hidden = []
        for start in range(0, T, per_call):
            part = columns[:, start : start + per_call]
            t = part.shape[1]
            lane, before = np.repeat(lanes, t), np.repeat(lengths + start, t)
            position = before + np.tile(np.arange(t), n)
            visible_columns = (lane[:, None] == lane) & (position <= position[:, None])
            out, logits = self._run(
                part.reshape(n * t, D), lane, position, np.repeat(prefixes, t), before, visible_columns, memory
            )
            hidden.append(out.reshape(n, t, D))
        return np.concatenate(hidden, axis=1), logits.reshape(n, t, -1)[:, -1]

    def _load_prefix(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix]) -> None:
        if prefix.keys is None:
            self.prefill(prefix, needed)
        else:
            self.store_prefix(prefix, self._admit(prefix, needed))

    def _admit(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix]) -> int:
        """Make room for a prefix in the kv-cache, and return the number that marks the prefix's slots in ``owner``.

        The pool holds at most as many prefixes as lanes (sequences). If the pool is full, it drops a prefix that is not
        in ``needed``.
        """
        current = list(self.settings.stored.values())
        dropped = [other for other in self.prefixes if other is prefix or other not in current]
        if len(self.prefixes) - len(dropped) >= min(self.lanes, self.settings.prefixes):
            dropped.append(next(other for other in self.prefixes if other not in needed and other not in dropped))
        for other in dropped:
            self.owner[self.owner == self.prefixes.pop(other)] = FREE
        owner = FIRST_PREFIX
        while owner in self.prefixes.values():
            owner -= 1
        self.prefixes[prefix] = owner
        return owner

    def free_prefixes(self) -> bool:
        """Return whether another prefix (prompt) fits into the pool without dropping one that is still stored."""
        current = sum(prefix in self.settings.stored.values() for prefix in self.prefixes)
        return current < min(self.lanes, self.settings.prefixes)

    def _run(
        self,
        columns: np.ndarray,
        owners: np.ndarray,
        positions: np.ndarray,
        prefixes: np.ndarray,
        before: np.ndarray,
        visible_columns: np.ndarray,
        memory: Mapping[str, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute n columns in one call, and store their keys and values.

        Args:
            columns: Columns (n, D).
            owners: Owner of each column: the number of a lane (sequence) or prefix, (n,).
            positions: Position of each column in its owner, (n,).
            prefixes: Owner number of the prefix to which each column attends, (n,).
            before: Number of the owner's stored positions to which each column attends, beginning with position 0,
                (n,).
            visible_columns: Whether a column (row) attends to another column of this call, (n, n).
            memory: Inputs with the keys and values to cross-attend to.

        Returns:
            Hidden states (n, D) and logits (n, V).
        """
        n, L = len(columns), self.columns
        slots = self.reserve(n)
        visible = (self.owner == prefixes[:, None]) | (
            (self.owner == owners[:, None]) & (self.position < before[:, None])
        )
        needed = self.slots_needed(visible, slots)
        function = next(f for f in self.functions if f.bucket["slots"] >= needed)
        # the pool's slots up to the function's number of slots, then the recent slots of ``StatePool``
        seen = np.concatenate((visible[:, : function.bucket["slots"]], visible[:, self.slots :]), axis=1)
        mask = np.full((1, 1, L, seen.shape[1] + L), MASKED, self.settings.dtype)
        mask[0, 0, :n, : seen.shape[1]][seen] = 0
        mask[0, 0, :n, seen.shape[1] : seen.shape[1] + n][visible_columns] = 0
        x = pack_columns(columns, L, self.settings.scale, self.settings.dtype)
        outputs = self.call(function, slots, memory, {"x": x, "mask": mask})
        self.owner[slots], self.position[slots] = owners, positions
        return outputs["hidden"][0, :, 0, :n].T, joined_logits(outputs, slice(n))


class CacheArrays:
    """Arrays (layers, heads, width, N) with a decoder's keys and values, by the names of the function inputs."""

    def __init__(self, settings: PoolSettings, *names: str):
        self.arrays: dict[str, np.ndarray] = {name: np.zeros((*settings.geometry, 0), settings.dtype) for name in names}

    def resized(self, length: int) -> dict[str, np.ndarray]:
        """Resize the arrays to ``length`` positions, and return them. Positions that no longer fit are dropped."""
        for name, old in self.arrays.items():
            if old.shape[-1] != length:
                self.arrays[name] = np.zeros((*old.shape[:-1], length), old.dtype)
                fitting = min(length, old.shape[-1])
                self.arrays[name][..., :fitting] = old[..., :fitting]
        return self.arrays

    def write(self, slots: np.ndarray, *values: np.ndarray) -> None:
        for array, columns in zip(self.arrays.values(), values, strict=True):
            array[..., slots] = columns


class HostPool(SlotPool):
    """A ``SlotPool`` whose keys and values are NumPy arrays on the host.

    Each call passes the slots in use to the function.
    """

    def __init__(self, functions: Sequence[PackageFunction], lanes: int, settings: PoolSettings):
        super().__init__(functions, lanes, settings)
        self._cache = CacheArrays(settings, "keys", "values")

    def reserve(self, count: int) -> np.ndarray:
        return np.flatnonzero(self.owner == FREE)[:count]

    def slots_needed(self, visible: np.ndarray, reserved: np.ndarray) -> int:
        """Return the number of slots (cache positions) up to the last slot in use.

        ``resized`` drops all slots after these.
        """
        used = np.flatnonzero(self.owner != FREE)
        return 1 + max(int(used[-1]) if len(used) else 0, int(reserved[-1]))

    def store_prefix(self, prefix: StoredPrefix, owner: int) -> None:
        slots = self.reserve(len(prefix.columns))
        self.owner[slots], self.position[slots] = owner, np.arange(len(slots))
        needed = self.slots_needed(np.zeros((0, self.slots), bool), slots)
        self._cache.resized(next(f for f in self.functions if f.bucket["slots"] >= needed).bucket["slots"])
        self._cache.write(slots, prefix.keys, prefix.values)

    def call(
        self,
        function: PackageFunction,
        slots: np.ndarray,
        memory: Mapping[str, np.ndarray],
        inputs: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        outputs = function(caches={**self._cache.resized(function.bucket["slots"]), **memory}, **inputs)
        self._cache.write(slots, *(outputs[name][..., : len(slots)] for name in ("new_keys", "new_values")))
        return outputs
