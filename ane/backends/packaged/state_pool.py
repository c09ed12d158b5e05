"""Keep a decoder's keys and values in a state of Core ML, and let a function write new ones to free slots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ane.backends.packaged.functions import PackageFunction, state_arrays
from ane.backends.packaged.pools import FREE, CacheArrays, PoolSettings, SlotPool, StoredPrefix


class StatePool(SlotPool):
    """A ``SlotPool`` whose keys and values are in a Core ML state.

    All functions share the state. Each function was built for a number of slots, and reads that many slots from the
    beginning of the state.

    New columns first stay on the host in *recent* slots, which come last in the table. The number of recent slots is
    the number of columns that the function ``store`` takes. When the recent slots are full, ``store`` copies their
    columns to the first run of adjacent free slots that is long enough. If the slots in use are so scattered that no
    such run exists, they are first moved to the front.
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
        """Write keys and values (layers, heads, width, n) to the first run of free slots in the state.

        A slot is a position in the cache, and a run has ``block`` adjacent slots.
        """
        if not len(owners):
            return
        if not len(self._free_runs()):
            self._compact()
        self._write(int(self._free_runs()[0]), keys, values, owners, positions)

    def _free_runs(self) -> np.ndarray:
        """Return the index of each slot that begins a run of ``block`` free slots.

        A slot holds one position of the kv-cache. Even a call with fewer than ``block`` columns needs such a run,
        because ``store`` writes zeros after the columns.
        """
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
        """Move all slots (cache positions) in use to the front of the state."""
        live = np.flatnonzero(self.owner[: self.slots] != FREE)
        # read keys and values one after another, because Core ML copies each as float32 (1 GB for the official weights)
        arrays = [
            state_arrays(self.state, (name,))[0][..., live].astype(np.float16) for name in ("key_cache", "value_cache")
        ]
        owners, positions = self.owner[live], self.position[live]
        self.owner[: self.slots] = FREE
        for start in range(0, len(live), self.block):
            part = slice(start, start + self.block)
            self._write(start, *(array[..., part] for array in arrays), owners[part], positions[part])
