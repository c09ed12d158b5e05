"""The autoregressive packages behind ``ane.backends.base.Decoder``: lanes as columns of a call, their past in pools of slots.

A pool serves up to as many lanes as its function has columns. Its first slots are rooms for prefixes, each as long as
the longest; position p of lane l lies in slot p · lanes + l after them, so that lanes which advance together fill it
from the front. What a column sees is said by a mask alone: its prefix, the own positions before it, itself. Rewinding
or refilling a lane therefore moves nothing; what lies beyond its length is unseen and overwritten in time. A pool has a
room for each of its lanes at most, and takes a prefix in when one of them first sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.backends.packaged.functions import Function
from ane.system.errors import UserError

MASKED = -1e4       # finite: an infinity would make NaN of a column that sees nothing
NOBODY = -1         # the lane of a slot that belongs to none


class PackagedDecoder:
    """``ane.backends.base.Decoder`` on functions of the kinds prefill and step, or fill and state.

    Args:
        prefills: functions without a cache, for the prefix; none of them, or none large enough: it goes in as steps.
        fills: wide steps on states, for a prefix.
        steps: functions with a pool, all of one kind: "step" (the host keeps the pool) or "state" (the engine does).
        geometry: (layers, heads, width) of the network. scale: of the columns the graphs take.
        prefixes, longest: see ``ane.backends.base.Backend.decoder``.

    Raises:
        UserError: no pool has room for even one lane beside the prefix.
    """

    def __init__(self, prefills: Sequence[Function], fills: Sequence[Function], steps: Sequence[Function], lanes: int,
                 capacity: int, geometry: tuple[int, int, int], scale: float, dtype: type, prefixes: int = 1,
                 longest: int | None = None):
        self.prefills, self.fills, self.steps = prefills, fills, steps
        self.lanes, self.capacity, self.prefixes, self.longest = lanes, capacity, prefixes, longest
        self.geometry, self.scale, self.dtype = geometry, scale, dtype
        self.room = longest or 0            # slots for a prefix
        self.pools: list[Pool] = []
        self.prefix: dict[int, Prefix] = {}

    def prefill(self, prefix: np.ndarray, place: int = 0) -> tuple[np.ndarray, np.ndarray]:
        grows = self.longest is None and self.prefixes == 1 and len(prefix) > self.room
        if place >= self.prefixes or (len(prefix) > self.room and not grows):
            raise ValueError(f"decoder of {self.prefixes} prefixes of {self.room} positions asked for prefix "
                             f"{place}, {len(prefix)} positions")
        if grows or not self.pools:
            self.room = max(self.room, len(prefix))
            self.pools = self._share()
        self.prefix[place] = Prefix(prefix)
        fitting = [f for f in self.prefills if f.bucket["columns"] >= len(prefix)]
        if fitting and isinstance(self.pools[0], HostPool):
            return self._prefill_at_once(min(fitting, key=lambda f: f.bucket["columns"]), self.prefix[place])
        pool = next((pool for pool in self.pools if pool.spare()), self.pools[0])
        return pool.prefill(self.prefix[place])

    def step(self, columns: np.ndarray, length: np.ndarray, first: int = 0,
             prefix: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        n, T, _ = columns.shape
        if int(length.max()) + T > self.capacity or first + n > self.lanes:
            raise ValueError(f"decoder of {self.lanes} lanes × {self.capacity} positions asked for lane "
                             f"{first + n - 1}, position {int(length.max()) + T - 1}")
        seen = [self.prefix[place] for place in (np.zeros(n, dtype=np.int64) if prefix is None else prefix)]
        parts, begin = [], 0
        for pool in self.pools:
            low, high = max(first, begin), min(first + n, begin + pool.lanes)
            if low < high:
                rows = slice(low - first, high - first)
                parts.append(pool.step(columns[rows], length[rows], low - begin, seen[rows]))
            begin += pool.lanes
        hidden, logits = zip(*parts, strict=True)
        return np.concatenate(hidden), np.concatenate(logits)

    def _share(self) -> list["Pool"]:
        """Pools that take all lanes in the fewest calls, of those the ones of the narrowest function."""
        def most(step: Function) -> int:
            shared = (step.bucket["slots"] - self.prefixes * self.room) // self.capacity
            if shared < self.prefixes:          # then each lane may need a room of its own
                shared = min(step.bucket["slots"] // (self.capacity + self.room), self.prefixes)
            return min(step.bucket["columns"], shared, self.lanes)

        fitting = [step for step in self.steps if most(step)]
        if not fitting:
            room = max(step.bucket["slots"] for step in self.steps)
            raise UserError(f"the text takes {self.room} slots and its speech up to {self.capacity}, but the "
                            f"largest decoder bucket of this bundle has {room}: use a shorter --split or fewer "
                            "--max-codes, or convert again with larger --buckets")
        best = min(fitting, key=lambda s: (-(-self.lanes // most(s)), s.bucket["columns"], s.bucket["slots"]))
        lanes = most(best)
        kind = StatePool if best.kind == "state" else HostPool
        same = [step for step in (*self.steps, *(self.fills if kind is StatePool else ()))
                if step.bucket["slots"] == best.bucket["slots"]]
        starts = range(0, self.lanes, lanes)
        return [kind(same, self.prefix, self.room, min(lanes, self.lanes - start), self.prefixes, self.geometry,
                     self.scale, self.dtype, sole=len(starts) == 1) for start in starts]

    def _prefill_at_once(self, function: Function, prefix: "Prefix") -> tuple[np.ndarray, np.ndarray]:
        P, L = len(prefix.columns), function.bucket["columns"]
        x = packed(prefix.columns, L, self.scale, self.dtype)
        mask = np.where(np.tri(L, dtype=bool), 0, MASKED).astype(self.dtype)[None, None]
        outputs = function(x=x, mask=mask)
        prefix.keys, prefix.values = (np.array(outputs[name][..., :P]) for name in ("new_keys", "new_values"))
        return outputs["hidden"][0, :, 0, P - 1], outputs["logits"][0, :, 0, P - 1]


@dataclass(eq=False)
class Prefix:
    """Columns (P, D), and keys and values (layers, heads, width, P) where a function without a cache made them."""

    columns: np.ndarray
    keys: np.ndarray | None = None
    values: np.ndarray | None = None


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
    """Slots of one size and the lanes that share them; who holds keys and values is the subclass's.

    Args:
        live: the decoder's prefixes by place; one that is no longer among them needs no room.
    """

    def __init__(self, functions: Sequence[Function], live: Mapping[int, Prefix], longest: int, lanes: int,
                 prefixes: int, geometry: tuple[int, int, int], scale: float, dtype: type, sole: bool):
        self.live, self.sole = live, sole
        self.functions = sorted(functions, key=lambda f: f.bucket["columns"])
        self.longest, self.lanes, self.scale, self.dtype = longest, lanes, scale, dtype
        self.slots = self.functions[0].bucket["slots"]
        self.rooms: list[Prefix | None] = [None] * min(lanes, prefixes)
        self.begin = len(self.rooms) * longest                  # slot of the first own position
        own = np.arange(self.slots) - self.begin
        self.lane = np.where(own < 0, NOBODY, own % lanes)
        self.position = np.where(own < 0, NOBODY, own // lanes)
        self.hold(geometry)

    def hold(self, geometry: tuple[int, int, int]) -> None:
        """Make room for keys and values, all zero."""
        raise NotImplementedError

    def call(self, function: Function, x: np.ndarray, mask: np.ndarray, slots: np.ndarray) -> dict[str, np.ndarray]:
        """Run a function, and keep the keys and values of its first ``len(slots)`` columns in these slots."""
        raise NotImplementedError

    def prefill(self, prefix: Prefix, among: Sequence[Prefix] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Take a prefix in, as steps of as many columns as there are, over one that is not ``among`` those needed.

        Returns hidden (D,), logits (V,) of its last position.
        """
        begin, most = self._make_room(prefix, among), self.functions[-1].bucket["columns"]
        for start in range(0, len(prefix.columns), most):
            columns = prefix.columns[start:start + most]
            n = len(columns)
            sees = np.broadcast_to((np.arange(self.slots) >= begin) & (np.arange(self.slots) < begin + start),
                                   (n, self.slots))
            hidden, logits = self._run(columns, begin + start + np.arange(n), sees, np.tri(n, dtype=bool))
        return hidden[-1], logits[-1]

    def step(self, columns: np.ndarray, length: np.ndarray, first: int,
             seen: Sequence[Prefix]) -> tuple[np.ndarray, np.ndarray]:
        """(n, T, D) onto the lanes ``first`` … of this pool, each seeing its prefix of ``seen``.

        Returns hidden (n, T, D), logits (n, V) of the last column.
        """
        n, T, D = columns.shape
        of_prefix = self._of_prefix(seen)
        at_once = max(1, self.functions[-1].bucket["columns"] // n)     # positions of each lane in one call
        hidden = []
        for start in range(0, T, at_once):
            part = columns[:, start:start + at_once]
            t = part.shape[1]
            lane = np.repeat(first + np.arange(n), t)
            before = np.repeat(length + start, t)                       # own positions in the pool already
            position = before + np.tile(np.arange(t), n)
            sees = np.repeat(of_prefix, t, axis=0) | ((self.lane == lane[:, None]) & (self.position < before[:, None]))
            among = (lane[:, None] == lane) & (position <= position[:, None])
            said, logits = self._run(part.reshape(n * t, D), self.begin + position * self.lanes + lane, sees, among)
            hidden.append(said.reshape(n, t, D))
        return np.concatenate(hidden, axis=1), logits.reshape(n, t, -1)[:, -1]

    def take_in(self, prefix: Prefix, among: Sequence[Prefix]) -> None:
        """Put a prefix into a room of the pool, over one that is not ``among`` those needed."""
        self.prefill(prefix, among)

    def _of_prefix(self, seen: Sequence[Prefix]) -> np.ndarray:
        """Which slots hold the prefix of each lane: (n, slots) bool; those that are not there yet are taken in."""
        for prefix in seen:
            if prefix not in self.rooms:
                self.take_in(prefix, seen)
        begin = np.array([self.rooms.index(prefix) * self.longest for prefix in seen])[:, None]
        end = begin + np.array([len(prefix.columns) for prefix in seen])[:, None]
        slots = np.arange(self.slots)
        return (slots >= begin) & (slots < end)

    def spare(self) -> list[int]:
        """Rooms that are empty, or whose prefix has been stored over."""
        return [room for room, there in enumerate(self.rooms) if there not in self.live.values()]

    def _make_room(self, prefix: Prefix, among: Sequence[Prefix]) -> int:
        """The first slot of the room that a prefix gets."""
        unneeded = (room for room, there in enumerate(self.rooms) if there not in among)
        room = next(iter(self.spare()), None)
        room = next(unneeded) if room is None else room
        self.rooms[room] = prefix
        return room * self.longest

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

    def take_in(self, prefix: Prefix, among: Sequence[Prefix]) -> None:
        if prefix.keys is None:
            self.prefill(prefix, among)
        else:
            begin = self._make_room(prefix, among)
            self.keep(np.arange(begin, begin + len(prefix.columns)), prefix.keys, prefix.values)

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
