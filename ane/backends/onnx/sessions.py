"""Graphs loaded into ONNX Runtime: when they are first run, until memory is needed for others."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ane.backends.onnx.providers import CPU, Device, OutOfMemoryError, engine_errors, quiet_options, runtime
from ane.system.errors import UserError

Shape = tuple[int, ...]
CUDA = "CUDAExecutionProvider"
ALWAYS = {CUDA: {"use_tf32": "0"}}      # float32 is float32: ONNX Runtime's own choice keeps 10 bits of the mantissa


@dataclass(frozen=True)
class Wanted:
    """A session: a graph, and for a provider with engines of its own the shapes that its engine takes.

    Attributes:
        path: of the graph. size: bytes of it and its weights, about what it takes in memory.
        options: of the provider, as (name, value) pairs.
    """

    path: Path
    size: int
    options: tuple[tuple[str, str], ...] = ()


class Loaded:
    """A session, and what goes with it: the bindings of calls that are alive, which keep their session, and the number
    of CUDA graphs that it has recorded, of which it lets none go."""

    def __init__(self, session: Any):
        self.session, self.recordings = session, 0
        self.bindings: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Sessions:
    """Loads sessions and keeps them; the least recently used go where the budget, or the memory itself, runs out.

    Args:
        budget: bytes that sessions may take together; None: what there is. A single one may exceed it.
        load: makes a session of ``Wanted``.
    """

    def __init__(self, load: Callable[[Wanted], Any], budget: int | None = None):
        self.budget, self._load = budget, load
        self._kept: OrderedDict[Wanted, Loaded] = OrderedDict()

    def get(self, wanted: Wanted) -> Any:
        """The session, loaded unless it is kept.

        Raises:
            OutOfMemoryError: not even with all others gone is there room for it. UserError: it cannot be loaded.
        """
        if wanted in self._kept:
            self._kept.move_to_end(wanted)
            return self._kept[wanted].session
        while self._kept and self.budget is not None and self.used + wanted.size > self.budget:
            self._kept.popitem(last=False)
        while True:
            try:
                session = self._load(wanted)
                break
            except OutOfMemoryError:
                if not self._kept:
                    raise
                self._kept.popitem(last=False)
        self._kept[wanted] = Loaded(session)
        return session

    def relieved(self, wanted: Wanted, call: Callable[[Any], Any]) -> Any:
        """What ``call`` gives of the session; when memory runs out in it, once more with all other sessions gone."""
        try:
            return call(self.get(wanted))
        except OutOfMemoryError:
            others = [kept for kept in self._kept if kept != wanted]
            if not others:
                raise
            for kept in others:
                del self._kept[kept]
            return call(self.get(wanted))

    def binding(self, wanted: Wanted, owner: Any, make: Callable[[Any], Any]) -> Any:
        """What ``make`` gives of the session for ``owner``: kept as long as both are, made anew for a new session."""
        session, kept = self.get(wanted), self._kept[wanted].bindings
        if owner not in kept:
            kept[owner] = make(session)
        return kept[owner]

    def recording(self, wanted: Wanted) -> int:
        """The number of a session's next CUDA graph: never used twice in it, for a recording has the addresses of its
        buffers."""
        self.get(wanted)
        self._kept[wanted].recordings += 1
        return self._kept[wanted].recordings

    def shed(self, wanted: Wanted, most: int) -> None:
        """Let go of a session that has made ``most`` recordings or more, and so of them."""
        if wanted in self._kept and self._kept[wanted].recordings >= most:
            del self._kept[wanted]

    def forget(self, folder: Path | None = None) -> None:
        """Let go of the sessions of a package; of all, where none is named."""
        for wanted in list(self._kept):
            if folder is None or wanted.path.parent == folder:
                del self._kept[wanted]

    @property
    def used(self) -> int:
        return sum(wanted.size for wanted in self._kept)

    def __contains__(self, wanted: Wanted) -> bool:
        return wanted in self._kept

    def __len__(self) -> int:
        return len(self._kept)


def loader(device: Device, threads: int | None = None,
           options: Mapping[str, str] | None = None) -> Callable[[Wanted], Any]:
    """What loads sessions on a device; ``options`` are the provider's for every session.

    Sessions have ONNX Runtime's own defaults, but for ``ALWAYS``. A provider that is not among a session's own did not
    load: that is an error here, where ONNX Runtime goes on on the CPU.
    """
    def load(wanted: Wanted) -> Any:
        ort = runtime()
        given = {**ALWAYS.get(device.provider, {}), **(options or {}), **dict(wanted.options)}
        providers = [(device.provider, given)] if given else [device.provider]
        if device.provider == "TensorrtExecutionProvider":
            providers.append((CUDA, ALWAYS[CUDA]))          # for what TensorRT leaves
        if device.provider != CPU:
            providers.append(CPU)                           # for shapes
        with engine_errors(f"load {wanted.path} on {device.spoken}"):
            session = ort.InferenceSession(str(wanted.path), quiet_options(threads), providers=providers)
        if device.provider not in session.get_providers():
            raise UserError(f"the provider {device.spoken} did not load for {wanted.path.name}, and ONNX Runtime would "
                            f"compute on the CPU instead; it needs {device.needs}. Or use --backend onnx:cpu")
        return session

    return load
