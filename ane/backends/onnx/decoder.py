"""The decoder on ONNX Runtime: caches in place, steps over buffers that do not move.

A step's graph reads the caches where they lie and gives the keys and values of its columns alone, which are then
written to their positions; nothing of the cache is copied, joined or brought to the host. What a column sees is said
by a mask. Lanes that see one prefix attend to it in one product (the graph ``step``); of lanes that see several, each
takes its own (``step_places``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ane.backends.onnx.blocks import Block, Bound, Memory, Part
from ane.backends.onnx.caches import Cache
from ane.backends.onnx.providers import RecordingError
from ane.backends.onnx.sessions import Sessions, Wanted

MASKED = -1e4           # finite: no sum of it overflows fp16, and its exponential is zero
UNIT = 64               # positions; the host's caches grow by so many, a device's double
KEPT_BINDINGS = 16      # shapes of calls that buffers are kept for


@dataclass(frozen=True)
class Geometry:
    """Of the network: layers, heads, width of a head, of a column, number of codes; dtype of the caches."""

    layers: int
    heads: int
    width: int
    model_dim: int
    codes: int
    dtype: np.dtype


@dataclass(frozen=True)
class Graphs:
    """Where the decoder's sessions come from.

    Attributes:
        prefill: what serves a prefix of so many positions.
        step: what serves a step, by its name and the shapes of its inputs; True with it: it records CUDA graphs.
        unrecorded: told that a step could not be recorded; from then on ``step`` gives what records none.
        room: positions that are kept for a prefix of so many; the mask hides the rest.
    """

    sessions: Sessions
    prefill: Callable[[int], Wanted]
    step: Callable[[str, dict[str, tuple[int, ...]]], tuple[Wanted, bool]]
    unrecorded: Callable[[RecordingError], None]
    room: Callable[[int], int] = lambda positions: positions


class OnnxDecoder:
    """``ane.backends.base.Decoder`` on ONNX Runtime.

    Args:
        longest: positions of the longest prefix; None: of the first that is stored.
    """

    def __init__(self, graphs: Graphs, geometry: Geometry, memory: Memory, lanes: int, capacity: int,
                 prefixes: int = 1, longest: int | None = None):
        self.graphs, self.geometry, self.memory = graphs, geometry, memory
        self.lanes, self.capacity, self.prefixes, self.longest = lanes, capacity, prefixes, longest
        self.own = self._caches(lanes, min(UNIT, capacity))
        self.stored: tuple[Cache, Cache] | None = None
        self.held = np.zeros(prefixes, dtype=np.int64)          # positions of the prefix at each place
        self._bound: dict[tuple, Bound] = {}

    def prefill(self, prefix: np.ndarray, place: int = 0) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= place < self.prefixes:
            raise ValueError(f"decoder of {self.prefixes} places for prefixes asked for place {place}")
        P = len(prefix)
        self._make_room(P)
        g = self.geometry
        shapes = {"hidden": (1, g.model_dim), "logits": (1, g.codes),
                  **dict.fromkeys(("keys", "values"), (g.layers, g.heads, P, g.width))}
        call = self._call(self.graphs.prefill(P), {"columns": (1, P, g.model_dim)}, shapes)
        call.run("take the text in", columns=prefix[None])
        for cache, name in zip(self.stored, ("keys", "values"), strict=True):
            cache.write(place, np.arange(P)[None], _as(call.outputs[name], (g.layers, 1, g.heads, P, g.width)))
        self.held[place] = P
        return call.outputs["hidden"].numpy()[0], call.outputs["logits"].numpy()[0]

    def step(self, columns: np.ndarray, length: np.ndarray, first: int = 0,
             prefix: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        n, T, _ = columns.shape
        end = int(length.max()) + T
        if end > self.capacity or first + n > self.lanes:
            raise ValueError(f"decoder of {self.lanes} lanes × {self.capacity} positions asked for lane "
                             f"{first + n - 1}, position {end - 1}")
        if self.stored is None:
            raise ValueError("a step before any prefill")
        place = np.zeros(n, dtype=np.int64) if prefix is None else np.asarray(prefix, dtype=np.int64)
        self._grow(end)
        try:
            call = self._run_step(columns, length, first, place)
        except RecordingError as error:
            self.graphs.unrecorded(error)
            self._bound.clear()
            call = self._run_step(columns, length, first, place)
        position = length[:, None] + np.arange(T)
        for cache, name in zip(self.own, ("new_keys", "new_values"), strict=True):
            cache.write(first, position, call.outputs[name])
        return call.outputs["hidden"].numpy(), call.outputs["logits"].numpy()

    def _run_step(self, columns: np.ndarray, length: np.ndarray, first: int, place: np.ndarray) -> Bound:
        n, T, _ = columns.shape
        call = self._step_of(n, T, first, place)
        several = {"place": place} if "place" in call.inputs else {}
        call.run("take a step", columns=columns, mask=self._mask(length, T, place), **several)
        return call

    def _mask(self, length: np.ndarray, columns: int, place: np.ndarray) -> np.ndarray:
        """(n, T, P + L + T) float32: seen are the prefix, the own positions before, the columns up to itself."""
        P, L = self.stored[0].length, self.own[0].length
        seen = np.zeros((len(length), columns, P + L + columns), dtype=bool)
        seen[..., :P] = (np.arange(P) < self.held[place][:, None])[:, None]
        seen[..., P:P + L] = (np.arange(L) < length[:, None])[:, None]
        seen[..., P + L:] = np.tri(columns, dtype=bool)
        return np.where(seen, np.float32(0), np.float32(MASKED))

    def _step_of(self, n: int, T: int, first: int, place: np.ndarray) -> Bound:
        """The call for so many lanes from ``first`` on, its buffers kept from the last of its kind."""
        sole = int(place[0]) if (place == place[0]).all() else None
        key = n, T, first, sole
        if key not in self._bound:
            if len(self._bound) >= KEPT_BINDINGS:
                self._bound.clear()
            self._bound[key] = self._bind_step(n, T, first, sole)
        return self._bound[key]

    def _bind_step(self, n: int, T: int, first: int, sole: int | None) -> Bound:
        g, P, L = self.geometry, self.stored[0].length, self.own[0].length
        of_prefix = (g.heads, P, g.width) if sole is not None else (self.prefixes, g.heads, P, g.width)
        inputs = {"columns": (n, T, g.model_dim), "mask": (n, T, P + L + T)} | ({} if sole is not None else {
            "place": (n,)})
        caches = {f"{name}_{layer}": Part(cache.block, cache.offset(layer, lane), shape)
                  for pair, names, lane, shape in (
                      (self.own, ("keys", "values"), first, (n, g.heads, L, g.width)),
                      (self.stored, ("prefix_keys", "prefix_values"), sole or 0, of_prefix))
                  for cache, name in zip(pair, names, strict=True) for layer in range(g.layers)}
        outputs = {"hidden": (n, T, g.model_dim), "logits": (n, g.codes),
                   **dict.fromkeys(("new_keys", "new_values"), (g.layers, n, g.heads, T, g.width))}
        shapes = inputs | {name: part.shape for name, part in caches.items()}
        wanted, records = self.graphs.step("step" if sole is not None else "step_places", shapes)
        # one recording for each set of buffers; a tail comes once and is not recorded
        return self._call(wanted, inputs, outputs, caches, T == 1 if records else None)

    def _call(self, wanted: Wanted, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]],
              parts: dict[str, Part] | None = None, recorded: bool | None = None) -> Bound:
        kinds = {"place": np.int64} | dict.fromkeys(("keys", "values", "new_keys", "new_values"), self.geometry.dtype)
        return Bound(self.memory, self.graphs.sessions, wanted, inputs, outputs, kinds, parts, recorded)

    def _caches(self, lanes: int, length: int) -> tuple[Cache, Cache]:
        g = self.geometry
        return tuple(Cache(self.memory, (g.layers, lanes, g.heads, length, g.width), g.dtype) for _ in range(2))

    def _make_room(self, positions: int) -> None:
        """For a prefix; the places are of one length."""
        most = self.graphs.room(positions if self.prefixes == 1 else max(positions, self.longest or 0))
        if self.stored is None or (self.prefixes == 1 and self.stored[0].length != most):
            self.stored = self._caches(self.prefixes, most)
        elif self.stored[0].length < most:
            for cache in self.stored:
                cache.grow(most)
        else:
            return
        self._bound.clear()

    def _grow(self, end: int) -> None:
        """The lanes' caches to the next bucket, when ``end`` positions do not fit."""
        length = self.own[0].length
        if end <= length:
            return
        while length < end:
            length = length + UNIT if self.memory.where == "cpu" else 2 * length
        for cache in self.own:
            cache.grow(min(length, self.capacity))
        self._bound.clear()


def _as(block: Block, shape: Sequence[int]) -> Block:
    """The block under another shape of the same size."""
    block.shape = tuple(shape)
    if hasattr(block, "array"):
        block.array = block.array.reshape(shape)
    return block
