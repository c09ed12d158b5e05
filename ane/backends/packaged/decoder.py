"""Run a decoder on a package's functions, which have fixed shapes and compute several columns in one call.

A lane is a sequence, and a column is the embedding at one position of a lane. The columns of a call may belong to
different lanes. A pool of slots (see ``pools``) stores their keys and values. A pool serves at most as many lanes as
its functions have columns, and holds at most one prefix per lane. It loads a prefix into its slots when a lane first
needs the prefix.

If the network has cross-attention, all columns of a call attend to the same memory (such as encoded audio). Lanes with
different memories need separate calls.
"""

from collections.abc import Sequence

import numpy as np

from ane.backends.base import MASKED
from ane.backends.decoding import Decoder, check_step
from ane.backends.packaged.functions import PackageFunction
from ane.backends.packaged.pools import HostPool, PoolSettings, SlotPool, StoredPrefix, joined_logits, pack_columns
from ane.backends.packaged.state_pool import StatePool
from ane.system.errors import UserError

NO_MEMORY: dict[str, np.ndarray] = {}  # memory inputs of a network without cross-attention


class PackagedDecoder(Decoder):
    """A decoder that runs the functions of a package.

    The kinds of these functions are "prefill" and "step", or "prefill", "state" and "store". ``prefill`` raises
    UserError if no function has enough slots for a lane and its prefix.

    Args:
        prefills: Functions that compute a whole prefix in one call, without a cache. If a prefix is too long for these
            functions, ``steps`` compute it.
        steps: Functions that read the kv-cache. All are of the kind "step", which read it from NumPy arrays, or all are
            of the kind "state", which read it inside Core ML.
        stores: Functions that write to a state, one for each number of slots in a state.
        lanes, capacity, prefixes, max_prefix_length: See ``ane.backends.base.Backend.decoder``.
        geometry: Number of layers, number of heads and head width of the network.
        scale: Factor by which to multiply columns before they go to a function (``PackageRecord.scale``).
        dtype: Dtype of the functions' inputs and of the caches that this decoder holds.
        memories: Sequence with the one function of the kind "memory". An empty sequence means that the network has no
            cross-attention.
        release_prefill: Whether to unload a prefill function as soon as all prefixes are stored.
    """

    def __init__(
        self,
        prefills: Sequence[PackageFunction],
        steps: Sequence[PackageFunction],
        stores: Sequence[PackageFunction],
        lanes: int,
        capacity: int,
        geometry: tuple[int, int, int],
        scale: float,
        dtype: type,
        prefixes: int = 1,
        max_prefix_length: int | None = None,
        memories: Sequence[PackageFunction] = (),
        release_prefill: bool = False,
    ):
        self.memory_functions, self.memories = memories, dict[int, dict[str, np.ndarray]]()  # by prefix index
        self.prefills, self.steps, self.stores = prefills, steps, stores
        self.lanes, self.capacity, self.prefixes, self.max_prefix_length = lanes, capacity, prefixes, max_prefix_length
        self.geometry, self.scale, self.dtype, self.release_prefill = geometry, scale, dtype, release_prefill
        self.prefix_slots = max_prefix_length or 0  # slots to reserve for one prefix
        self.pools: list[SlotPool] = []
        self.stored: dict[int, StoredPrefix] = {}  # by prefix index

    def set_memory(self, memory: np.ndarray, index: int = 0) -> None:
        positions = [function.bucket["states"] for function in self.memory_functions]
        if index >= self.prefixes or len(memory) not in positions:
            raise ValueError(
                f"this decoder stores {self.prefixes} memories of {(*positions, 0)[0]} positions, "
                f"got memory number {index} with {len(memory)} positions"
            )
        outputs = self.memory_functions[0](states=memory.T[None, :, None].astype(self.dtype))
        self.memories[index] = {name: array.astype(self.dtype) for name, array in outputs.items()}

    def prefill(self, prefix: np.ndarray, index: int = 0) -> tuple[np.ndarray, np.ndarray]:
        grows = self.max_prefix_length is None and self.prefixes == 1 and len(prefix) > self.prefix_slots
        if index >= self.prefixes or (len(prefix) > self.prefix_slots and not grows):
            raise ValueError(
                f"this decoder stores {self.prefixes} prefixes of up to {self.prefix_slots} positions, got prefix "
                f"{index} of {len(prefix)} positions"
            )
        if grows or not self.pools:
            self.prefix_slots = max(self.prefix_slots, len(prefix))
            self.pools = self._make_pools()
        self.stored[index] = StoredPrefix(prefix, self.memories.get(index, NO_MEMORY))
        fitting = [f for f in self.prefills if f.bucket["columns"] >= len(prefix)]
        if fitting:
            return self._prefill_without_cache(min(fitting, key=lambda f: f.bucket["columns"]), self.stored[index])
        pool = next((pool for pool in self.pools if pool.free_prefixes()), self.pools[0])
        return pool.prefill(self.stored[index])

    def step(
        self, columns: np.ndarray, lengths: np.ndarray, first_lane: int = 0, prefix_indices: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
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

    def _make_pools(self) -> list[SlotPool]:
        """Divide the lanes (sequences) among pools.

        A step should take as few calls, and then as few columns (inputs), as possible.
        """
        by_shape: dict[tuple[int, int | None], list[PackageFunction]] = {}  # functions that differ only in their slots
        for step in self.steps:
            by_shape.setdefault((step.bucket["columns"], step.bucket.get("capacity")), []).append(step)
        fitting = [(functions, lanes) for functions in by_shape.values() if (lanes := self._max_lanes(functions))]
        if not fitting:
            largest = max(step.bucket["slots"] for step in self.steps)
            raise UserError(
                f"the text takes {self.prefix_slots} positions and its speech up to {self.capacity}, but "
                f"the largest decoder bucket of this bundle has {largest}: use a shorter split or fewer "
                "max_codes, or convert again with larger buckets"
            )
        functions, lanes = min(
            fitting,
            key=lambda one: (
                -(-self.lanes // one[1]),
                one[0][0].bucket["columns"],
                max(f.bucket["slots"] for f in one[0]),
            ),
        )
        self._prepare(functions, lanes)
        starts = range(0, self.lanes, lanes)
        settings = PoolSettings(self.stored, self.prefixes, self.geometry, self.scale, self.dtype)
        counts = [min(lanes, self.lanes - start) for start in starts]
        if functions[0].kind == "step":
            return [HostPool(functions, count, settings) for count in counts]
        return [StatePool(functions, count, settings, self._store_of(functions[0])) for count in counts]

    def _prepare(self, functions: Sequence[PackageFunction], lanes: int) -> None:
        """Load every function that a text may need, so that no slow first load interrupts speech.

        If the kv-cache is a Core ML state, its free slots are scattered, so a text of any length may need all
        functions.
        """
        needed = min(self.prefixes, lanes) * self.prefix_slots + lanes * self.capacity
        smaller = 0
        for function in sorted(functions, key=lambda one: one.bucket["slots"]):
            if function.kind == "state" or smaller < needed:
                function.prepare()
            smaller = function.bucket["slots"]

    def _max_lanes(self, functions: Sequence[PackageFunction]) -> int:
        """Return for how many lanes (sequences) these functions have enough columns (inputs) and slots (positions)."""
        slots, prefix = max(f.bucket["slots"] for f in functions), self.prefix_slots
        if functions[0].kind == "state":  # the function "store" fills a whole block of slots
            block = self._store_of(functions[0]).bucket["columns"]
            slots, prefix = slots // block * block, -(-prefix // block) * block
        lanes = (slots - self.prefixes * prefix) // self.capacity
        if lanes < self.prefixes:  # there may then be a prefix for each lane, and each prefix needs slots
            lanes = min(slots // (self.capacity + prefix), self.prefixes)
        return min(functions[0].bucket["columns"], lanes, self.lanes)

    def _store_of(self, step: PackageFunction) -> PackageFunction:
        return next(store for store in self.stores if store.bucket["capacity"] == step.bucket["capacity"])

    def _prefill_without_cache(
        self, function: PackageFunction, prefix: "StoredPrefix"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute a prefix in one call, and store its keys and values.

        Returns:
            Hidden state (D,) and logits (V,) of the last position.
        """
        P, L = len(prefix.columns), function.bucket["columns"]
        x = pack_columns(prefix.columns, L, self.scale, self.dtype)
        mask: np.ndarray = np.where(np.tri(L, dtype=bool), 0, MASKED).astype(self.dtype)[None, None]
        outputs = function(caches=prefix.memory, x=x, mask=mask)
        prefix.keys, prefix.values = (np.array(outputs[name][..., :P]) for name in ("new_keys", "new_values"))
        if self.release_prefill and len(self.stored) == self.prefixes:
            function.unload()
        return outputs["hidden"][0, :, 0, P - 1], joined_logits(outputs, slice(P - 1, P))[0]
