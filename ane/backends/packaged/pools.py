"""Store a decoder's keys and values in pools of slots, and run the calls that read and fill them.

A table says what each slot holds: a position of a lane, a position of a prefix, or nothing. The mask of a call lets a
column attend to the slots of its prefix and of its lane's earlier positions. So slots may be used in any order, and
rewinding, refilling or sharing moves no data. A call takes the function with the fewest slots that hold everything it
needs, and a larger function as texts grow.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.backends.base import MASKED
from ane.backends.packaged.functions import PackageFunction, state_arrays

FREE = -1  # owner of a slot that holds nothing; the owner of a lane's slots is the lane's index
FIRST_PREFIX = -2  # owner of the slots of the first prefix; the next prefixes have lower numbers


@dataclass(eq=False)
class StoredPrefix:
    """A prefix that the decoder stores.

    Attributes:
        columns: Columns (P, D).
        memory: Keys and values that these columns and all lanes of the prefix cross-attend to, as inputs of functions.
            An empty mapping means that the network has no cross-attention.
        keys: Keys (layers, heads, width, P), if a function without a cache has computed them.
        values: Values, as ``keys``.
    """

    columns: np.ndarray
    memory: Mapping[str, np.ndarray]
    keys: np.ndarray | None = None
    values: np.ndarray | None = None


def joined_logits(outputs: Mapping[str, np.ndarray], columns: slice) -> np.ndarray:
    """Return the logits (n, V) of these columns. A long vocabulary is split into logits_0, logits_1 and so on."""
    names = sorted((name for name in outputs if name.startswith("logits")), key=lambda name: (len(name), name))
    return np.concatenate([outputs[name][0, :, 0, columns] for name in names]).T


def pack_columns(columns: np.ndarray, count: int, scale: float, dtype: type) -> np.ndarray:
    """Multiply columns (n, D) by ``scale``, and pad them to ``count`` columns, (1, D, 1, count).

    Normalising a column of zeros, which an idle lane has, would divide by zero, and the NaN would reach other lanes
    through the pool. Such columns and the padding are therefore filled with a ramp.
    """
    x: np.ndarray = np.empty((1, columns.shape[1], 1, count), dtype)
    x[0, :, 0, :] = np.linspace(-1, 1, columns.shape[1])[:, None] * scale
    nonzero = np.flatnonzero(columns.any(axis=1))
    x[0, :, 0, nonzero] = columns[nonzero] * scale
    return x


@dataclass(frozen=True)
class PoolSettings:
    """Settings that the pools of a decoder share.

    Attributes:
        stored: The decoder's prefixes, by index. The slots of a prefix that is no longer in it are free.
        prefixes: Number of prefixes that the decoder may store.
        geometry: (layers, heads, head width) of the network.
        scale: Factor for the columns.
        dtype: Type of the functions' inputs.
    """

    stored: Mapping[int, StoredPrefix]
    prefixes: int
    geometry: tuple[int, int, int]
    scale: float
    dtype: type


class SlotPool(ABC):
    """The slots of functions that differ only in their number, and the lanes that share these slots.

    A subclass stores the content of the slots. ``owner`` and ``position``, (slots,) each, are the table.
    """

    def __init__(self, functions: Sequence[PackageFunction], lanes: int, settings: PoolSettings, recent: int = 0):
        self.functions = sorted(functions, key=lambda f: f.bucket["slots"])
        self.settings, self.lanes, self.columns = settings, lanes, functions[0].bucket["columns"]
        self.slots = self.functions[-1].bucket["slots"]
        self.owner = np.full(self.slots + recent, FREE)
        self.position = np.zeros(self.slots + recent, dtype=np.int64)
        self.prefixes: dict[StoredPrefix, int] = {}  # prefixes in the pool → owner of their slots

    @abstractmethod
    def reserve(self, count: int) -> np.ndarray:
        """Return free slots (count,) in which the next call stores its columns."""

    @abstractmethod
    def slots_needed(self, visible: np.ndarray, reserved: np.ndarray) -> int:
        """Return how many of the first slots the function of a call must have. ``visible`` is (columns, slots)."""

    @abstractmethod
    def call(
        self,
        function: PackageFunction,
        slots: np.ndarray,
        memory: Mapping[str, np.ndarray],
        inputs: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Run a function, and store the keys and values of its first ``len(slots)`` columns in these slots."""

    @abstractmethod
    def store_prefix(self, prefix: StoredPrefix, owner: int) -> None:
        """Store a prefix whose keys and values are known."""

    def prefill(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Compute a prefix, with as many columns per call as possible. It replaces no prefix in ``needed``.

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
        """Append columns (n, T, D) to the lanes of this pool from ``first_lane`` on, which attend to these prefixes.

        Returns:
            Hidden states (n, T, D), and logits (n, V) of the last column.
        """
        for prefix in prefixes:
            if prefix not in self.prefixes:
                self._load_prefix(prefix, prefixes)
        for row, length in enumerate(lengths):  # a rewound lane drops the rest
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
        """Do ``step`` for the lanes (n,) of one memory. ``prefixes`` (n,) are the owners of their prefixes' slots."""
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
        """Make room for a prefix, and return the owner of its slots.

        The pool holds at most as many prefixes as lanes. If it is full, one that is not in ``needed`` is dropped.
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
        """Return whether a prefix can be stored without dropping one that the decoder stores."""
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
        """Compute columns (n, D), and store them as these ``positions`` of ``owners``.

        Each column attends to its prefix, to its owner's positions before ``before``, and to ``visible_columns`` (n,
        n).

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
        # the pool's slots that the function has, then recent slots
        seen = np.concatenate((visible[:, : function.bucket["slots"]], visible[:, self.slots :]), axis=1)
        mask = np.full((1, 1, L, seen.shape[1] + L), MASKED, self.settings.dtype)
        mask[0, 0, :n, : seen.shape[1]][seen] = 0
        mask[0, 0, :n, seen.shape[1] : seen.shape[1] + n][visible_columns] = 0
        x = pack_columns(columns, L, self.settings.scale, self.settings.dtype)
        outputs = self.call(function, slots, memory, {"x": x, "mask": mask})
        self.owner[slots], self.position[slots] = owners, positions
        return outputs["hidden"][0, :, 0, :n].T, joined_logits(outputs, slice(n))


class CacheArrays:
    """The keys and values (layers, heads, width, N) of a decoder, by the names of the functions' inputs."""

    def __init__(self, settings: PoolSettings, *names: str):
        self.arrays: dict[str, np.ndarray] = {name: np.zeros((*settings.geometry, 0), settings.dtype) for name in names}

    def resized(self, length: int) -> dict[str, np.ndarray]:
        """Resize the arrays to this length, with the content that fits, and return them."""
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
    """A pool with keys and values on the host. Each call receives as many slots as are in use."""

    def __init__(self, functions: Sequence[PackageFunction], lanes: int, settings: PoolSettings):
        super().__init__(functions, lanes, settings)
        self._cache = CacheArrays(settings, "keys", "values")

    def reserve(self, count: int) -> np.ndarray:
        return np.flatnonzero(self.owner == FREE)[:count]

    def slots_needed(self, visible: np.ndarray, reserved: np.ndarray) -> int:
        """Return the number of all slots in use, because a resize for another function drops the rest."""
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


class StatePool(SlotPool):
    """A pool with keys and values in a state. All functions share the state, and each reads as far as it needs.

    New columns stay on the host, in as many recent slots as the function ``store`` takes. These come last in the table.
    When they are full, they are stored in the first run of as many free slots. If there is no such run, because the
    slots in use are scattered, the state is rewritten with only these.
    """

    def __init__(
        self, functions: Sequence[PackageFunction], lanes: int, settings: PoolSettings, store: PackageFunction
    ):
        self.block = store.bucket["columns"]
        super().__init__(functions, lanes, settings, self.block)
        self.store = store
        self.state: Any = store.make_state()
        self._recent = CacheArrays(settings, "recent_keys", "recent_values")

    def reserve(self, count: int) -> np.ndarray:
        if (self.owner[self.slots :] == FREE).sum() < count:
            self._store_recent()
        return self.slots + np.flatnonzero(self.owner[self.slots :] == FREE)[:count]

    def slots_needed(self, visible: np.ndarray, reserved: np.ndarray) -> int:
        used = np.flatnonzero(visible[:, : self.slots].any(axis=0))
        return 1 + int(used[-1]) if len(used) else 0

    def store_prefix(self, prefix: StoredPrefix, owner: int) -> None:
        for start in range(0, len(prefix.columns), self.block):
            part = slice(start, start + self.block)
            count = prefix.keys[..., part].shape[-1]
            self._store(
                prefix.keys[..., part], prefix.values[..., part], np.full(count, owner), start + np.arange(count)
            )

    def call(
        self,
        function: PackageFunction,
        slots: np.ndarray,
        memory: Mapping[str, np.ndarray],
        inputs: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        outputs = function(self.state, {**self._recent.resized(self.block), **memory}, **inputs)
        new = (outputs[name][..., : len(slots)] for name in ("new_keys", "new_values"))
        self._recent.write(slots - self.slots, *new)
        return outputs

    def _store_recent(self) -> None:
        recent = slice(self.slots, None)
        live = np.flatnonzero(self.owner[recent] != FREE)
        self._store(
            *(array[..., live] for array in self._recent.arrays.values()),
            self.owner[recent][live],
            self.position[recent][live],
        )
        self.owner[recent] = FREE

    def _store(self, keys: np.ndarray, values: np.ndarray, owners: np.ndarray, positions: np.ndarray) -> None:
        """Store columns (layers, heads, width, n) in the first run of free slots."""
        if not len(owners):
            return
        if not len(self._free_runs()):
            self._compact()
        self._write(int(self._free_runs()[0]), keys, values, owners, positions)

    def _free_runs(self) -> np.ndarray:
        """Return where ``block`` adjacent free slots begin. A store of fewer columns also writes zeros after them."""
        used = np.concatenate(([0], np.cumsum(self.owner[: self.slots] != FREE)))
        return np.flatnonzero(used[self.block :] == used[: -self.block])

    def _write(
        self, begin: int, keys: np.ndarray, values: np.ndarray, owners: np.ndarray, positions: np.ndarray
    ) -> None:
        count = len(owners)
        dtype = self.settings.dtype
        padding = [(0, 0), (0, 0), (0, 0), (0, self.block - count)]
        self.store(
            self.state,
            keys=np.pad(keys, padding).astype(dtype),
            values=np.pad(values, padding).astype(dtype),
            begin=np.array((0, 0, 0, begin), np.int32),
        )
        block = slice(begin, begin + self.block)
        self.owner[block] = FREE
        self.owner[begin : begin + count], self.position[begin : begin + count] = owners, positions

    def _compact(self) -> None:
        """Move the used slots to the front."""
        live = np.flatnonzero(self.owner[: self.slots] != FREE)
        # reads one cache after the other, because Core ML copies it as float32, 1 GB at the official size
        arrays = [
            state_arrays(self.state, (name,))[0][..., live].astype(np.float16) for name in ("key_cache", "value_cache")
        ]
        owners, positions = self.owner[live], self.position[live]
        self.owner[: self.slots] = FREE
        for start in range(0, len(live), self.block):
            part = slice(start, start + self.block)
            self._write(start, *(array[..., part] for array in arrays), owners[part], positions[part])
