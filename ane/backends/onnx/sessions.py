"""A cache of ONNX Runtime sessions: each is loaded when first used, and dropped when a budget is used up."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ane.backends.onnx.providers import CPU, CUDA, OnnxDevice, make_session, onnx_errors
from ane.system.errors import UserError

Shape = tuple[int, ...]
PROVIDER_OPTIONS = {CUDA: {"use_tf32": "0"}}    # ONNX Runtime's default computes float32 with a 10-bit mantissa


@dataclass(frozen=True)
class SessionKey:
    """Identifies a session: a graph, and options of the provider (for TensorRT the shapes that its engine takes).

    Attributes:
        path: of the graph. size: bytes of its package, an estimate of the memory it takes.
        options: of the provider, as (name, value) pairs.
    """

    path: Path
    size: int
    options: tuple[tuple[str, str], ...] = ()


class LoadedSession:
    """A session with the bindings of the calls that use it, and the number of CUDA graphs it has recorded.

    ONNX Runtime frees the recordings of a session only with the session.
    """

    def __init__(self, session: Any):
        self.session, self.recordings = session, 0
        self.bindings: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class SessionCache:
    """Loads sessions and caches them; the least recently used are unloaded when the budget runs out.

    Args:
        load: makes the session of a key.
        budget: bytes that all sessions may take together; None: no limit. A single larger session is still loaded.
    """

    def __init__(self, load: Callable[[SessionKey], Any], budget: int | None = None):
        self.budget, self._load = budget, load
        self._loaded: OrderedDict[SessionKey, LoadedSession] = OrderedDict()

    def get(self, key: SessionKey) -> Any:
        """The session, loaded if it is not. Raises UserError when it cannot be loaded."""
        if key in self._loaded:
            self._loaded.move_to_end(key)
            return self._loaded[key].session
        while self._loaded and self.budget is not None and self.used + key.size > self.budget:
            self._loaded.popitem(last=False)
        self._loaded[key] = LoadedSession(self._load(key))
        return self._loaded[key].session

    def binding(self, key: SessionKey, owner: Any, make: Callable[[Any], Any]) -> Any:
        """``make(session)``, cached for ``owner`` until the session is unloaded or the owner is deleted."""
        session, bindings = self.get(key), self._loaded[key].bindings
        if owner not in bindings:
            bindings[owner] = make(session)
        return bindings[owner]

    def next_recording(self, key: SessionKey) -> int:
        """A new number for a CUDA graph of the session. No number is reused, since recordings hold buffer addresses."""
        self.get(key)
        self._loaded[key].recordings += 1
        return self._loaded[key].recordings

    def unload_after(self, key: SessionKey, recordings: int) -> None:
        """Unload a session, and with it its recordings, once it has made ``recordings`` of them."""
        if key in self._loaded and self._loaded[key].recordings >= recordings:
            del self._loaded[key]

    def unload(self, folder: Path | None = None) -> None:
        """Unload the sessions of the package in ``folder``, or all."""
        for key in list(self._loaded):
            if folder is None or key.path.parent == folder:
                del self._loaded[key]

    @property
    def used(self) -> int:
        return sum(key.size for key in self._loaded)

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._loaded

    def __len__(self) -> int:
        return len(self._loaded)


def session_loader(device: OnnxDevice, threads: int | None = None) -> Callable[[SessionKey], Any]:
    """A function that loads sessions on a device; UserError where ONNX Runtime would fall back to the CPU."""
    def load(key: SessionKey) -> Any:
        own = {**PROVIDER_OPTIONS.get(device.provider, {}), **dict(key.options)}
        providers = [(device.provider, own)] if own else [device.provider]
        if device.provider == "TensorrtExecutionProvider":
            providers.append((CUDA, PROVIDER_OPTIONS[CUDA]))    # for operations that TensorRT lacks
        if device.provider != CPU:
            providers.append(CPU)                               # for operations on shapes
        with onnx_errors(f"load {key.path} on {device.short_name}"):
            session = make_session(key.path, providers, threads)
        if device.provider not in session.get_providers():
            raise UserError(f"the provider {device.short_name} did not load for {key.path.name}, and ONNX Runtime "
                            f"would compute on the CPU instead; it needs {device.requirements}. Or use "
                            "backend=onnx:cpu")
        return session

    return load
