"""The decoder on fixed-shape functions. A function computes several columns (embedded positions) in one call.

The columns of a call belong to different lanes (sequences). Their keys and values are stored in a pool of slots, which
serves at most as many lanes as its function has columns. The first slots of a pool are reserved for prefixes, in
regions as long as the longest prefix; position p of lane l is in slot p · lanes + l after them, so that lanes that
advance together fill the pool from the front. Only the mask defines what a column attends to: its prefix, its lane's
earlier positions, itself. So rewinding or refilling a lane moves no data: positions beyond its length are masked and
later overwritten. A pool has at most one prefix region per lane, and loads a prefix when a lane first needs it.

With cross-attention, all columns of a call attend to one memory. Lanes of different memories take a call each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.backends.base import MASKED, check_step
from ane.backends.packaged.functions import PackageFunction
from ane.system.errors import UserError

NO_LANE = -1        # of a slot that belongs to no lane


class PackagedDecoder:
    """``ane.backends.base.Decoder`` on functions of the kinds "prefill" and "step", or "fill" and "state".

    Args:
        prefills: functions without a cache, which compute a prefix in one call. A prefix that is too long for all of
            them is computed by ``steps``.
        fills: functions as those of the kind "state", but with more columns, for prefixes.
        steps: functions with a pool, all of one kind: "step" (the pool is in NumPy arrays) or "state" (in Core ML).
        geometry: (layers, heads, head width) of the network.
        scale: factor on the columns that the functions take (``PackageRecord.scale``).
        dtype: of the functions' inputs.
        prefixes, max_prefix_length: see ``ane.backends.base.Backend.decoder``.
        memories: the function of the kind "memory" of a network with cross-attention; none: it has no cross-attention.
        release_prefill: drop a function without a cache when all prefixes are stored.

    Raises:
        UserError: no function has enough slots for one lane and its prefix (raised by ``prefill``).
    """

    def __init__(self, prefills: Sequence[PackageFunction], fills: Sequence[PackageFunction],
                 steps: Sequence[PackageFunction], lanes: int, capacity: int, geometry: tuple[int, int, int],
                 scale: float, dtype: type, prefixes: int = 1, max_prefix_length: int | None = None,
                 memories: Sequence[PackageFunction] = (), release_prefill: bool = False):
        self.memory_functions, self.memories = memories, dict[int, CrossMemory]()        # the latter by prefix index
        self.prefills, self.fills, self.steps = prefills, fills, steps
        self.lanes, self.capacity, self.prefixes, self.max_prefix_length = lanes, capacity, prefixes, max_prefix_length
        self.geometry, self.scale, self.dtype, self.release_prefill = geometry, scale, dtype, release_prefill
        self.prefix_slots = max_prefix_length or 0          # slots reserved for one prefix
        self.pools: list[SlotPool] = []
        self.stored: dict[int, StoredPrefix] = {}           # by prefix index

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        positions = [function.bucket["states"] for function in self.memory_functions]
        if index >= self.prefixes or len(memory) not in positions:
            raise ValueError(f"a decoder of {self.prefixes} prefixes with a memory of {(*positions, 0)[0]} positions "
                             f"got memory {index} of {len(memory)} positions")
        outputs = self.memory_functions[0](states=memory.T[None, :, None].astype(self.dtype))
        self.memories[index] = CrossMemory({name: array.astype(self.dtype) for name, array in outputs.items()})

    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        grows = self.max_prefix_length is None and self.prefixes == 1 and len(prefix) > self.prefix_slots
        if index >= self.prefixes or (len(prefix) > self.prefix_slots and not grows):
            raise ValueError(f"a decoder of {self.prefixes} prefixes of {self.prefix_slots} positions got prefix "
                             f"{index} of {len(prefix)} positions")
        if grows or not self.pools:
            self.prefix_slots = max(self.prefix_slots, len(prefix))
            self.pools = self._make_pools()
        self.stored[index] = StoredPrefix(prefix, self.memories.get(index, CrossMemory({})))
        fitting = [f for f in self.prefills if f.bucket["columns"] >= len(prefix)]
        if fitting and isinstance(self.pools[0], HostPool):
            return self._prefill_without_cache(min(fitting, key=lambda f: f.bucket["columns"]), self.stored[index])
        pool = next((pool for pool in self.pools if pool.free_regions()), self.pools[0])
        return pool.prefill(self.stored[index])

    def step(self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0,
             prefix_indices: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        n = len(columns)
        check_step(self, columns, lengths, first_lane)
        indices = np.zeros(n, dtype=np.int64) if prefix_indices is None else prefix_indices
        prefixes = [self.stored[index] for index in indices]
        parts, begin = [], 0
        for pool in self.pools:
            low, high = max(first_lane, begin), min(first_lane + n, begin + pool.lanes)
            if low < high:
                rows = slice(low - first_lane, high - first_lane)
                parts.append(pool.step(columns[rows], lengths[rows], low - begin, prefixes[rows]))
            begin += pool.lanes
        hidden, logits = zip(*parts, strict=True)
        return np.concatenate(hidden), np.concatenate(logits)

    def _make_pools(self) -> list["SlotPool"]:
        """Pools that compute all lanes in the fewest calls; of equals, those of the function with fewest columns."""
        def max_lanes(step: PackageFunction) -> int:
            """Lanes for which a pool of this function has columns and slots."""
            lanes = (step.bucket["slots"] - self.prefixes * self.prefix_slots) // self.capacity
            if lanes < self.prefixes:           # then each lane may need a prefix region of its own
                lanes = min(step.bucket["slots"] // (self.capacity + self.prefix_slots), self.prefixes)
            return min(step.bucket["columns"], lanes, self.lanes)

        fitting = [step for step in self.steps if max_lanes(step)]
        if not fitting:
            largest = max(step.bucket["slots"] for step in self.steps)
            raise UserError(f"the text takes {self.prefix_slots} positions and its speech up to {self.capacity}, but "
                            f"the largest decoder bucket of this bundle has {largest}: use a shorter split or fewer "
                            "max_codes, or convert again with larger buckets")
        best = min(fitting, key=lambda s: (-(-self.lanes // max_lanes(s)), s.bucket["columns"], s.bucket["slots"]))
        lanes = max_lanes(best)
        kind = StatePool if best.kind == "state" else HostPool
        same = [step for step in (*self.steps, *(self.fills if kind is StatePool else ()))
                if step.bucket["slots"] == best.bucket["slots"]]
        starts = range(0, self.lanes, lanes)
        return [kind(same, self.stored, self.prefix_slots, min(lanes, self.lanes - start), self.prefixes,
                     self.geometry, self.scale, self.dtype, only_pool=len(starts) == 1) for start in starts]

    def _prefill_without_cache(self, function: PackageFunction,
                               prefix: "StoredPrefix") -> tuple[np.ndarray, np.ndarray]:
        """Compute a prefix in one call and keep its keys and values: hidden (D,), logits (V,) of its last position."""
        P, L = len(prefix.columns), function.bucket["columns"]
        x = pack_columns(prefix.columns, L, self.scale, self.dtype)
        mask = np.where(np.tri(L, dtype=bool), 0, MASKED).astype(self.dtype)[None, None]
        outputs = function(x=x, mask=mask, **prefix.memory.inputs(function))
        prefix.keys, prefix.values = (np.array(outputs[name][..., :P]) for name in ("new_keys", "new_values"))
        if self.release_prefill and len(self.stored) == self.prefixes:
            function.unload()
        return outputs["hidden"][0, :, 0, P - 1], joined_logits(outputs, slice(P - 1, P))[0]


@dataclass(eq=False)
class CrossMemory:
    """Keys and values (layers, heads, width, N) of a memory, by the functions' inputs; {} without cross-attention."""

    arrays: Mapping[str, np.ndarray]

    def inputs(self, function: PackageFunction) -> Mapping[str, np.ndarray]:
        """The inputs of a call. Core ML's buffers are the inputs themselves: they are filled when the memory changes,
        and not copied at each step."""
        buffers = getattr(function.loaded, "buffers", None)
        if not self.arrays or buffers is None:
            return self.arrays
        found = {name: buffers[name] for name in self.arrays}
        if function.loaded.content is not self:
            for name, array in self.arrays.items():
                np.copyto(found[name], array)
            function.loaded.content = self
        return found


@dataclass(eq=False)
class StoredPrefix:
    """Columns (P, D), and the memory that they and all lanes of this prefix attend to; keys and values (layers, heads,
    width, P) if a function without a cache has computed them."""

    columns: np.ndarray
    memory: CrossMemory
    keys: np.ndarray | None = None
    values: np.ndarray | None = None


def joined_logits(outputs: Mapping[str, np.ndarray], columns: slice) -> np.ndarray:
    """Logits (n, V) of these columns; a long vocabulary is split into the outputs logits_0, logits_1, …"""
    names = sorted((name for name in outputs if name.startswith("logits")), key=lambda name: (len(name), name))
    return np.concatenate([outputs[name][0, :, 0, columns] for name in names]).T


def pack_columns(columns: np.ndarray, count: int, scale: float, dtype: type) -> np.ndarray:
    """Columns (n, D) times ``scale``, padded to ``count``: (1, D, 1, count).

    Normalising a column of zeros (an idle lane's) would divide by zero, and the NaN would reach other lanes through the
    pool. Such columns and the padding are therefore filled with a ramp.
    """
    x = np.empty((1, columns.shape[1], 1, count), dtype)
    x[0, :, 0, :] = np.linspace(-1, 1, columns.shape[1])[:, None] * scale
    nonzero = np.flatnonzero(columns.any(axis=1))
    x[0, :, 0, nonzero] = columns[nonzero] * scale
    return x


class SlotPool:
    """The slots of functions with equally many of them, and the lanes that share them; a subclass keeps their content.

    Args:
        functions: they differ in columns only.
        stored: the decoder's prefixes by index; the region of a prefix that is no longer among them is free.
        prefix_slots: length of a prefix region. lanes: of this pool. prefixes: that the decoder may store.
        only_pool: whether the decoder has no other pool.
    """

    def __init__(self, functions: Sequence[PackageFunction], stored: Mapping[int, StoredPrefix], prefix_slots: int,
                 lanes: int, prefixes: int, geometry: tuple[int, int, int], scale: float, dtype: type,
                 only_pool: bool):
        self.stored, self.only_pool = stored, only_pool
        self.functions = sorted(functions, key=lambda f: f.bucket["columns"])
        self.prefix_slots, self.lanes, self.scale, self.dtype = prefix_slots, lanes, scale, dtype
        self.slots = self.functions[0].bucket["slots"]
        self.regions: list[StoredPrefix | None] = [None] * min(lanes, prefixes)
        self.first_own_slot = len(self.regions) * prefix_slots
        own = np.arange(self.slots) - self.first_own_slot
        self.lane_of_slot = np.where(own < 0, NO_LANE, own % lanes)
        self.position_of_slot = np.where(own < 0, NO_LANE, own // lanes)
        self.allocate(geometry)

    def allocate(self, geometry: tuple[int, int, int]) -> None:
        raise NotImplementedError

    def call(self, function: PackageFunction, slots: np.ndarray, inputs: Mapping[str, np.ndarray]) -> dict[
            str, np.ndarray]:
        """Run a function and store the keys and values of its first ``len(slots)`` columns in these slots.

        ``inputs``: x, mask, and those of the memory.
        """
        raise NotImplementedError

    def prefill(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Compute a prefix, as many columns per call as possible, into a region that none of ``needed`` occupies.

        Returns hidden (D,), logits (V,) of its last position.
        """
        begin, width = self._claim_region(prefix, needed), self.functions[-1].bucket["columns"]
        for start in range(0, len(prefix.columns), width):
            columns = prefix.columns[start:start + width]
            n = len(columns)
            visible = np.broadcast_to((np.arange(self.slots) >= begin) & (np.arange(self.slots) < begin + start),
                                      (n, self.slots))
            hidden, logits = self._run(columns, begin + start + np.arange(n), visible, np.tri(n, dtype=bool),
                                       prefix.memory)
        return hidden[-1], logits[-1]

    def step(self, columns: np.ndarray, lengths: np.ndarray, first_lane: int,
             prefixes: Sequence[StoredPrefix]) -> tuple[np.ndarray, np.ndarray]:
        """Append columns (n, T, D) to the lanes ``first_lane`` … of this pool, each attending to its prefix.

        Returns hidden (n, T, D), logits (n, V) of the last column.
        """
        prefix_visible = self._prefix_slots_of(prefixes)
        memories = [prefix.memory for prefix in prefixes]
        groups = [np.array([row for row, other in enumerate(memories) if other is memory])
                  for memory in dict.fromkeys(memories)]
        parts = [self._step_lanes(columns[rows], lengths[rows], first_lane + rows, prefix_visible[rows],
                                  memories[rows[0]]) for rows in groups]
        order = np.argsort(np.concatenate(groups))
        hidden, logits = (np.concatenate(part)[order] for part in zip(*parts, strict=True))
        return hidden, logits

    def _step_lanes(self, columns: np.ndarray, lengths: np.ndarray, lanes: np.ndarray, prefix_visible: np.ndarray,
                    memory: CrossMemory) -> tuple[np.ndarray, np.ndarray]:
        """``step`` for the lanes (n,) of one memory; ``prefix_visible`` (n, slots) marks their prefixes."""
        n, T, D = columns.shape
        per_call = max(1, self.functions[-1].bucket["columns"] // n)    # positions of each lane in one call
        hidden = []
        for start in range(0, T, per_call):
            part = columns[:, start:start + per_call]
            t = part.shape[1]
            lane = np.repeat(lanes, t)
            before = np.repeat(lengths + start, t)                      # own positions already in the pool
            position = before + np.tile(np.arange(t), n)
            visible = np.repeat(prefix_visible, t, axis=0) | (
                (self.lane_of_slot == lane[:, None]) & (self.position_of_slot < before[:, None]))
            visible_columns = (lane[:, None] == lane) & (position <= position[:, None])
            slots = self.first_own_slot + position * self.lanes + lane
            out, logits = self._run(part.reshape(n * t, D), slots, visible, visible_columns, memory)
            hidden.append(out.reshape(n, t, D))
        return np.concatenate(hidden, axis=1), logits.reshape(n, t, -1)[:, -1]

    def load_prefix(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix]) -> None:
        """Store a prefix in a region of the pool that none of ``needed`` occupies."""
        self.prefill(prefix, needed)

    def free_regions(self) -> list[int]:
        """Prefix regions that are empty, or whose prefix has been replaced in the decoder."""
        return [region for region, prefix in enumerate(self.regions) if prefix not in self.stored.values()]

    def _prefix_slots_of(self, prefixes: Sequence[StoredPrefix]) -> np.ndarray:
        """Which slots hold the prefix of each lane: (n, slots) bool; loads the prefixes that are missing."""
        for prefix in prefixes:
            if prefix not in self.regions:
                self.load_prefix(prefix, prefixes)
        begin = np.array([self.regions.index(prefix) * self.prefix_slots for prefix in prefixes])[:, None]
        end = begin + np.array([len(prefix.columns) for prefix in prefixes])[:, None]
        slots = np.arange(self.slots)
        return (slots >= begin) & (slots < end)

    def _claim_region(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix]) -> int:
        """The first slot of the region given to a prefix: a free one, else one that ``needed`` does not include."""
        free = self.free_regions()
        region = free[0] if free else next(i for i, other in enumerate(self.regions) if other not in needed)
        self.regions[region] = prefix
        return region * self.prefix_slots

    def _run(self, columns: np.ndarray, slots: np.ndarray, visible: np.ndarray, visible_columns: np.ndarray,
             memory: CrossMemory) -> tuple[np.ndarray, np.ndarray]:
        """Compute columns (n, D), store their keys and values in ``slots``, return hidden (n, D) and logits (n, V).

        ``visible`` (n, N) and ``visible_columns`` (n, n) mark the slots and the columns that each column attends to.
        """
        n = len(columns)
        function = next(f for f in self.functions if f.bucket["columns"] >= n)
        L = function.bucket["columns"]
        mask = np.full((1, 1, L, self.slots + L), MASKED, self.dtype)
        mask[0, 0, :n, :self.slots][visible] = 0
        mask[0, 0, :n, self.slots:self.slots + n][visible_columns] = 0
        x = pack_columns(columns, L, self.scale, self.dtype)
        outputs = self.call(function, slots, {"x": x, "mask": mask, **memory.inputs(function)})
        return outputs["hidden"][0, :, 0, :n].T, joined_logits(outputs, slice(n))


class HostPool(SlotPool):
    """Keys and values in NumPy arrays (layers, heads, width, N): inputs of a call, whose outputs are the new columns'.

    A function that Core ML has loaded takes float32 inputs and keeps a buffer for each. A decoder's only pool uses
    those buffers as its arrays, so that steps need not copy them (0.5 s per step at official size, with conversion).
    A later decoder on the same functions clears the buffers.
    """

    def allocate(self, geometry: tuple[int, int, int]) -> None:
        stepping = next(f for f in self.functions if f.bucket["columns"] >= self.lanes)
        buffers = getattr(stepping.loaded, "buffers", None)
        if buffers is not None and self.only_pool:
            self.keys, self.values = buffers["keys"], buffers["values"]
            self.keys.fill(0)
            self.values.fill(0)
        else:
            dtype = self.dtype if buffers is None else np.float32
            self.keys, self.values = (np.zeros((*geometry, self.slots), dtype) for _ in range(2))

    def load_prefix(self, prefix: StoredPrefix, needed: Sequence[StoredPrefix]) -> None:
        if prefix.keys is None:
            self.prefill(prefix, needed)
        else:
            begin = self._claim_region(prefix, needed)
            self.store(np.arange(begin, begin + len(prefix.columns)), prefix.keys, prefix.values)

    def store(self, slots: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        self.keys[..., slots], self.values[..., slots] = keys, values

    def call(self, function: PackageFunction, slots: np.ndarray, inputs: Mapping[str, np.ndarray]) -> dict[
            str, np.ndarray]:
        outputs = function(keys=self.keys, values=self.values, **inputs)
        n = len(slots)
        self.store(slots, outputs["new_keys"][..., :n], outputs["new_values"][..., :n])
        return outputs


class StatePool(SlotPool):
    """Keys and values in a Core ML state, which the graph itself writes; one state for all its functions."""

    def allocate(self, geometry: tuple[int, int, int]) -> None:
        self.state: Any = self.functions[-1].make_state()

    def call(self, function: PackageFunction, slots: np.ndarray, inputs: Mapping[str, np.ndarray]) -> dict[
            str, np.ndarray]:
        write = np.zeros((1, 1, function.bucket["columns"], self.slots), self.dtype)
        write[0, 0, np.arange(len(slots)), slots] = 1
        keep = np.ones((1, 1, 1, self.slots), self.dtype)
        keep[..., slots] = 0
        return function(self.state, write=write, keep=keep, **inputs)
