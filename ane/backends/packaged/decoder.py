"""The autoregressive packages behind ``ane.stages.Decoder``: lanes as columns of a call, their past in pools of slots.

A pool serves up to as many lanes as its function has columns. The prefix lies in its slots 0 … P − 1, and position p of
lane l in slot P + p · lanes + l, so that lanes which advance together fill it from the front. What a column sees is
said by a mask alone: the prefix, the own positions before it, itself. Rewinding or refilling a lane therefore moves
nothing; what lies beyond its length is unseen and overwritten in time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ane.backends.packaged.functions import Function
from ane.errors import UserError

MASKED = -1e4       # finite: an infinity would make NaN of a column that sees nothing
NOBODY = -1         # the lane of a slot that belongs to none


class PackagedDecoder:
    """``ane.stages.Decoder`` on functions of the kinds prefill and step, or fill and state.

    Args:
        prefills: functions without a cache, for the prefix; none of them, or none large enough: it goes in as steps.
        fills: wide steps on states, for a prefix.
        steps: functions with a pool, all of one kind: "step" (the host keeps the pool) or "state" (the engine does).
        geometry: (layers, heads, width) of the network. scale: of the columns the graphs take.

    Raises:
        UserError: no pool has room for even one lane beside the prefix.
    """

    def __init__(self, prefills: Sequence[Function], fills: Sequence[Function], steps: Sequence[Function], lanes: int,
                 capacity: int, geometry: tuple[int, int, int], scale: float, dtype: type):
        self.prefills, self.fills, self.steps = prefills, fills, steps
        self.lanes, self.capacity = lanes, capacity
        self.geometry, self.scale, self.dtype = geometry, scale, dtype
        self.pools: list[Pool] = []

    def prefill(self, prefix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen, lanes = self._share(len(prefix))
        kind = StatePool if chosen.kind == "state" else HostPool
        same = [step for step in (*self.steps, *(self.fills if kind is StatePool else ()))
                if step.bucket["slots"] == chosen.bucket["slots"]]
        starts = range(0, self.lanes, lanes)
        self.pools = [kind(same, len(prefix), min(lanes, self.lanes - start), self.geometry, self.scale, self.dtype,
                           sole=len(starts) == 1) for start in starts]
        fitting = [f for f in self.prefills if f.bucket["columns"] >= len(prefix)]
        if kind is StatePool or not fitting:
            for pool in self.pools:
                hidden, logits = pool.prefill(prefix)
            return hidden, logits
        return self._prefill_at_once(min(fitting, key=lambda f: f.bucket["columns"]), prefix)

    def step(self, columns: np.ndarray, length: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        n, T, _ = columns.shape
        if int(length.max()) + T > self.capacity or first + n > self.lanes:
            raise ValueError(f"decoder of {self.lanes} lanes × {self.capacity} positions asked for lane "
                             f"{first + n - 1}, position {int(length.max()) + T - 1}")
        parts, begin = [], 0
        for pool in self.pools:
            low, high = max(first, begin), min(first + n, begin + pool.lanes)
            if low < high:
                rows = slice(low - first, high - first)
                parts.append(pool.step(columns[rows], length[rows], low - begin))
            begin += pool.lanes
        hidden, logits = zip(*parts, strict=True)
        return np.concatenate(hidden), np.concatenate(logits)

    def _share(self, prefix: int) -> tuple[Function, int]:
        """The function whose pools take all lanes in the fewest calls, of those the narrowest, and lanes a pool."""
        def most(step: Function) -> int:
            return min(step.bucket["columns"], max(step.bucket["slots"] - prefix, 0) // self.capacity, self.lanes)

        fitting = [step for step in self.steps if most(step)]
        if not fitting:
            room = max(step.bucket["slots"] for step in self.steps)
            raise UserError(f"the text takes {prefix} slots and its speech up to {self.capacity}, but the largest "
                            f"decoder bucket of this bundle has {room}: use a shorter --split or fewer --max-codes, "
                            "or convert again with larger --buckets")
        best = min(fitting, key=lambda s: (-(-self.lanes // most(s)), s.bucket["columns"], s.bucket["slots"]))
        return best, most(best)

    def _prefill_at_once(self, function: Function, prefix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        P, L = len(prefix), function.bucket["columns"]
        x = packed(prefix, L, self.scale, self.dtype)
        mask = np.where(np.tri(L, dtype=bool), 0, MASKED).astype(self.dtype)[None, None]
        outputs = function(x=x, mask=mask)
        for pool in self.pools:
            pool.keep(np.arange(P), outputs["new_keys"][..., :P], outputs["new_values"][..., :P])
        return outputs["hidden"][0, :, 0, P - 1], outputs["logits"][0, :, 0, P - 1]


def packed(columns: np.ndarray, room: int, scale: float, dtype: type) -> np.ndarray:
    """Columns (n, D) as x (1, D, 1, room).

    A column of zeros (an idle lane's) has no norm, and its NaN would reach the others through the pool: such columns,
    and the room that is left, get a ramp instead.
    """
    x = np.empty((1, columns.shape[1], 1, room), dtype)
    x[0, :, 0, :] = np.linspace(-1, 1, columns.shape[1])[:, None] * scale
    real = np.flatnonzero(columns.any(axis=1))
    x[0, :, 0, real] = columns[real] * scale
    return x


class Pool:
    """Slots of one size and the lanes that share them; who holds keys and values is the subclass's."""

    def __init__(self, functions: Sequence[Function], prefix: int, lanes: int, geometry: tuple[int, int, int],
                 scale: float, dtype: type, sole: bool):
        self.sole = sole
        self.functions = sorted(functions, key=lambda f: f.bucket["columns"])
        self.prefix, self.lanes, self.scale, self.dtype = prefix, lanes, scale, dtype
        self.slots = self.functions[0].bucket["slots"]
        own = np.arange(self.slots) - prefix
        self.lane = np.where(own < 0, NOBODY, own % lanes)
        self.position = np.where(own < 0, NOBODY, own // lanes)
        self.hold(geometry)

    def hold(self, geometry: tuple[int, int, int]) -> None:
        """Make room for keys and values, all zero."""
        raise NotImplementedError

    def call(self, function: Function, x: np.ndarray, mask: np.ndarray, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Run a function, and keep the keys and values of its first ``len(slots)`` columns in these slots."""
        raise NotImplementedError

    def prefill(self, prefix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The prefix (P, D) as steps, as many columns at a time as there are: hidden (D,), logits (V,) of the last."""
        most = self.functions[-1].bucket["columns"]
        for start in range(0, len(prefix), most):
            columns = prefix[start:start + most]
            sees = np.broadcast_to(np.arange(self.slots) < start, (len(columns), self.slots))
            hidden, logits = self._run(columns, start + np.arange(len(columns)), sees, np.tri(len(columns), dtype=bool))
        return hidden[-1], logits[-1]

    def step(self, columns: np.ndarray, length: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, T, D) onto the lanes ``first`` … of this pool: hidden (n, T, D), logits (n, V) of the last column."""
        n, T, D = columns.shape
        at_once = max(1, self.functions[-1].bucket["columns"] // n)     # positions of each lane in one call
        hidden = []
        for start in range(0, T, at_once):
            part = columns[:, start:start + at_once]
            t = part.shape[1]
            lane = np.repeat(first + np.arange(n), t)
            seen = np.repeat(length + start, t)                         # own positions in the pool already
            position = seen + np.tile(np.arange(t), n)
            sees = (self.lane == NOBODY) | ((self.lane == lane[:, None]) & (self.position < seen[:, None]))
            among = (lane[:, None] == lane) & (position <= position[:, None])
            said, logits = self._run(part.reshape(n * t, D), self.prefix + position * self.lanes + lane, sees, among)
            hidden.append(said.reshape(n, t, D))
        return np.concatenate(hidden, axis=1), logits.reshape(n, t, -1)[:, -1]

    def _run(self, columns: np.ndarray, slots: np.ndarray, sees: np.ndarray,
             among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns (n, D) that see slots (n, N) and each other (n, n): hidden (n, D), logits (n, V)."""
        n = len(columns)
        function = next(f for f in self.functions if f.bucket["columns"] >= n)
        L = function.bucket["columns"]
        mask = np.full((1, 1, L, self.slots + L), MASKED, self.dtype)
        mask[0, 0, :n, :self.slots][sees] = 0
        mask[0, 0, :n, self.slots:self.slots + n][among] = 0
        outputs = self.call(function, packed(columns, L, self.scale, self.dtype), mask, slots)
        return outputs["hidden"][0, :, 0, :n].T, outputs["logits"][0, :, 0, :n].T


class HostPool(Pool):
    """Keys and values in arrays of the host (layers, heads, width, N): inputs of a call, which returns the new ones.

    Core ML is handed float32, and its engine keeps a function's inputs in buffers of its own: a sole pool lies right
    there, so that no step copies it (0.5 s a step at official size when it has to be converted too). A later decoder of
    the same functions begins the buffers anew.
    """

    def hold(self, geometry: tuple[int, int, int]) -> None:
        usual = next(f for f in self.functions if f.bucket["columns"] >= self.lanes)
        buffers = getattr(usual.loaded, "buffers", None)
        if buffers is not None and self.sole:
            self.keys, self.values = buffers["keys"], buffers["values"]
            self.keys.fill(0)
            self.values.fill(0)
        else:
            handed = self.dtype if buffers is None else np.float32
            self.keys, self.values = (np.zeros((*geometry, self.slots), handed) for _ in range(2))

    def keep(self, slots: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        self.keys[..., slots], self.values[..., slots] = keys, values

    def call(self, function: Function, x: np.ndarray, mask: np.ndarray, slots: np.ndarray) -> dict[str, np.ndarray]:
        outputs = function(x=x, mask=mask, keys=self.keys, values=self.values)
        n = len(slots)
        self.keep(slots, outputs["new_keys"][..., :n], outputs["new_values"][..., :n])
        return outputs


class StatePool(Pool):
    """Keys and values in a state of the engine, which the graph itself writes to; one state for all its functions."""

    def hold(self, geometry: tuple[int, int, int]) -> None:
        self.state: Any = self.functions[-1].make_state()

    def call(self, function: Function, x: np.ndarray, mask: np.ndarray, slots: np.ndarray) -> dict[str, np.ndarray]:
        write = np.zeros((1, 1, x.shape[3], self.slots), self.dtype)
        write[0, 0, np.arange(len(slots)), slots] = 1
        keep = np.ones((1, 1, 1, self.slots), self.dtype)
        keep[..., slots] = 0
        return function(self.state, x=x, mask=mask, write=write, keep=keep)
