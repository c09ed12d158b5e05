"""The models of a server: opened when they are first needed, released when others need their memory or nobody does."""

import gc
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ane.backends import load_backend
from ane.backends.owned import Owned
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.device import return_freed_memory
from ane.bundles import Model, find_bundle, open_model
from ane.models.whisper.transcription import Transcriber
from ane.server.jobs import Job
from ane.server.settings import ServerSettings
from ane.speech.lanes import Lanes
from ane.speech.turns import Turns
from ane.system.errors import UserError
from ane.voices import RANDOM, voice_names

LOGGER = logging.getLogger("ane.server")
REST_SECONDS = 5.0  # without a request, after which freed memory is returned: it takes a tenth of a second
DEFAULT_VOICE = "default"  # the only one of a model without voices, and a name for each model's own


@dataclass
class ServedModel:
    """A loaded model.

    Attributes:
        speaker: the family's synthesizer, or what transcribes.
        size: bytes of its bundle on disk. users: jobs that use it now.
        lanes: those that its streams share, if they need any.
    """

    name: str
    speaker: Any
    size: int
    lanes: Lanes | None = None
    users: int = 0
    used: float = field(default_factory=time.monotonic)
    voices: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def model(self) -> Model:
        return self.speaker.model

    @contextmanager
    def alone(self, job: Job) -> Iterator[None]:
        """Use within the block what only one job may use at a time: the decoder of a window."""
        with job.resting():
            self._lock.acquire()
        try:
            job.check()
            yield
        finally:
            self._lock.release()

    def voice(self, name: str) -> Any:
        """What ``speak`` takes for a voice that ``voice_names`` lists; the latents are read once."""
        if name == RANDOM:
            return name
        if name not in self.voices:
            self.voices[name] = self.speaker.prepare(voice=None if name == DEFAULT_VOICE else name)
        return self.voices[name]


class ServedModels:
    """The models that a server has loaded, by name. Several threads may use them."""

    def __init__(self, settings: ServerSettings, turns: Turns | None = None):
        self.settings, self._turns = settings, turns
        self._lock = threading.RLock()
        self._loaded: dict[str, ServedModel] = {}
        self._memory_returned = 0.0

    @property
    def loaded(self) -> list[str]:
        return list(self._loaded)

    @contextmanager
    def using(self, name: str) -> Iterator[ServedModel]:
        """A model, loaded now if it is not; it is not released within the block."""
        with self._lock:
            served = self._loaded.get(name) or self._load(name)
            if served.lanes is not None and served.lanes.ended is not None:  # what they hold is unknown
                served.lanes = served.speaker.shared_lanes(self.settings.lanes, self._turns)
            served.users += 1
        try:
            yield served
        finally:
            with self._lock:
                served.users -= 1
                served.used = time.monotonic()

    def release_unused(self) -> None:
        """Release the models that nobody has used for ``idle_release`` seconds; return memory when nobody uses any."""
        with self._lock:
            names: list[str] = []
            if self.settings.idle_release is not None:
                since = time.monotonic() - self.settings.idle_release
                names = [name for name, served in self._loaded.items() if not served.users and served.used < since]
                for name in names:
                    self._release(name)
            last_use = max((served.used for served in self._loaded.values()), default=0.0)
            unused = self._memory_returned < last_use < time.monotonic() - REST_SECONDS
            if (names or unused) and not any(served.users for served in self._loaded.values()):
                self._memory_returned = time.monotonic()
                gc.collect()
                return_freed_memory(torch.device("cpu"))

    def _load(self, name: str) -> ServedModel:
        folder = find_bundle(name)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        self._make_room(size)
        began = time.monotonic()
        model = open_model(bundle=name)
        backend = self._backend(model)
        if model.family.settings is None:
            served = ServedModel(name, Transcriber(model, backend), size)
        else:
            speaker = model.family.synthesizer(model, backend)
            served = ServedModel(name, speaker, size, speaker.shared_lanes(self.settings.lanes, self._turns))
            speaker.prepare()
        self._loaded[name] = served
        LOGGER.info(
            "model loaded",
            extra={
                "fields": {
                    "model": name,
                    "backend": getattr(backend, "name", ""),
                    "seconds": round(time.monotonic() - began, 3),
                }
            },
        )
        return served

    def _backend(self, model: Model) -> Any:
        """The backend of a model. Several threads may use it: of one that is not torch on the CPU, a thread of its own
        makes all calls.
        """
        settings, thread = self.settings, ThreadPoolExecutor(1, "owner")
        backend = thread.submit(
            load_backend, settings.backend, model, settings.precision, settings.threads, True, shared=True
        ).result()
        if backend.any_thread:
            thread.shutdown(wait=False)
            return backend
        if isinstance(backend, TorchBackend) and backend.device.type == "cpu":
            thread.shutdown(wait=False)
            if self._turns is not None:
                self._turns.set_threads()  # loading has chosen MKL's
            return backend
        return Owned(backend, thread)

    def _make_room(self, size: int) -> None:
        """Release the least recently used models until another of this size fits, as far as nobody uses them."""
        limit = self.settings.memory
        idle = sorted((served for served in self._loaded.values() if not served.users), key=lambda served: served.used)
        while limit is not None and idle and sum(served.size for served in self._loaded.values()) + size > limit:
            self._release(idle.pop(0).name)

    def _release(self, name: str) -> None:
        backend = self._loaded.pop(name).speaker.backend
        if isinstance(backend, Owned):
            backend.end()
        LOGGER.info("model released", extra={"fields": {"model": name}})
        gc.collect()


def check_models(settings: ServerSettings) -> None:
    """Raise UserError, before the server starts, for a bundle that is not there or cannot speak, or a mapped voice that
    no model has, nor may get from a client.
    """
    voices = {DEFAULT_VOICE}
    for name in settings.models:
        model = open_model(bundle=name)
        if model.family.settings is None:
            raise UserError(f"{name} is a {model.family.title} model, which cannot speak: name it as transcriber")
        voices.update(voice_names(model))
    for name, voice in settings.voices.items():
        if voice not in voices and not settings.add_voices:
            raise UserError(
                f"voices {name}={voice}: no model that is served has the voice {voice!r}; the voices "
                f"are {', '.join(sorted(voices))}",
                "voices",
            )
    if settings.transcriber and open_model(bundle=settings.transcriber).family.settings is not None:
        raise UserError(
            f"transcriber must be a model that transcribes, and {settings.transcriber} speaks", "transcriber"
        )
