"""Load a server's models when a request first needs them. Release models that are unused, or when memory is short."""

import gc
import logging
import os
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
from ane.server.errors import FaultError, no_such_voice
from ane.server.jobs import Job
from ane.server.settings import ServerSettings
from ane.speech.lanes import Lanes
from ane.speech.speaker import DEFAULT_VOICE
from ane.speech.turns import Turns
from ane.system.errors import UserError
from ane.voices import RANDOM, stored_voice, voice_names

LOGGER = logging.getLogger("ane.server")
REST_SECONDS = 5.0  # seconds without a request after which freed memory is returned to the system, which takes 0.1 s
Stamp = tuple[int, int, int] | None  # time, number and size of a stored voice's file. None means that there is no file


@dataclass
class ServedModel:
    """A model that the server has loaded.

    Attributes:
        name: Name of the model's bundle.
        speaker: The model's ``Speaker``, or its ``Transcriber`` if it transcribes.
        size: Bytes of the bundle on disk.
        lanes: Lanes of the decoder, which sample candidates of several requests at once. ``None`` means that the model
            has no lanes.
        users: Number of jobs that are using the model.
        used: Time at which the model was last used.
        voices: The voices that were loaded, by name. Each has the stamp of the file from which it was loaded.
    """

    name: str
    speaker: Any
    size: int
    lanes: Lanes | None = None
    users: int = 0
    used: float = field(default_factory=time.monotonic)
    voices: dict[str, tuple[Stamp, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def model(self) -> Model:
        return self.speaker.model

    @contextmanager
    def alone(self, job: Job) -> Iterator[None]:
        """Reserve the decoder for one window of a recording during the ``with`` block.

        Only one job can reserve the decoder at a time.
        """
        with job.resting():
            self._lock.acquire()
        try:
            job.check()
            yield
        finally:
            self._lock.release()

    def voice(self, name: str, settings: Any = None) -> Any:
        """Return the voice with this name, which ``voice_names`` listed.

        The method reads the latents in the first call, and again when the file of a stored voice has changed.

        Args:
            settings: Settings of the request, as for ``Speaker.speak``.

        Raises:
            UserError: The voice does not suit the settings.
            RefusedError: The voice was deleted, or it cannot be read.
        """
        if name == RANDOM:
            return name
        stamp = voice_stamp(name)
        loaded = self.voices.get(name)
        if loaded is None or loaded[0] != stamp:
            self.voices.pop(name, None)
            try:
                loaded = stamp, self.speaker.prepare(voice=None if name == DEFAULT_VOICE else name, settings=settings)
            except UserError as error:
                if error.parameter:
                    raise
                if name == DEFAULT_VOICE or name in voice_names(self.model):
                    raise FaultError(f"the server cannot read the voice {name!r}", error) from error
                raise no_such_voice(name) from error
            if voice_stamp(name) == stamp:  # else somebody deleted or replaced the voice while this thread read it
                self.voices[name] = loaded
        return loaded[1]


def voice_stamp(name: str) -> Stamp:
    """Return numbers that change when somebody replaces or deletes the stored voice with this name."""
    try:
        facts = os.stat(stored_voice(name))
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_ino, facts.st_size


class ServedModels:
    """The models that a server has loaded. Several threads may use this object."""

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
        """Load a model if it is not loaded yet, and keep it loaded during the ``with`` block.

        Raises FaultError if the model cannot be loaded.
        """
        with self._lock:
            try:
                served = self._loaded.get(name) or self._load(name)
            except UserError as error:
                raise FaultError(f"the server cannot load the model {name}", error) from error
            # An error has ended the lanes, and their contents are unknown.
            if served.lanes is not None and served.lanes.ended is not None:
                served.lanes = served.speaker.shared_lanes(self.settings.lanes, self._turns)
            served.users += 1
        try:
            yield served
        finally:
            with self._lock:
                served.users -= 1
                served.used = time.monotonic()

    def forget_voice(self, name: str) -> None:
        """Remove the latents of a deleted voice from memory, without waiting for a model that is being loaded."""
        for served in list(self._loaded.values()):
            served.voices.pop(name, None)

    def release_unused(self) -> None:
        """Release models that nobody used for ``idle_release`` seconds.

        If no model is in use, return freed memory to the system.
        """
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
        """Load the backend for a model. Several threads may use the returned backend.

        If an engine allows only one thread, the method returns an ``Owned`` backend, which makes all calls on one
        thread.
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
                self._turns.set_threads()  # loading has changed MKL's number of threads
            return backend
        return Owned(backend, thread)

    def _make_room(self, size: int) -> None:
        """Release unused models until another model of ``size`` bytes fits. The least recently used goes first."""
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
    """Check the bundles and the mapped voices, before the server starts.

    Raises:
        UserError: A bundle is missing or cannot do its task. Or the settings map a name to a voice that no model has,
            and clients may not add voices.
    """
    voices = {DEFAULT_VOICE}
    for name in settings.models:
        model = open_model(bundle=name)
        if model.family.settings is None:
            raise UserError(f"{name} is a {model.family.title} model, which cannot speak: name it as transcriber")
        voices.update(voice_names(model), [model.default_voice] if model.default_voice else [])
    for name, voice in settings.voices.items():
        if voice not in voices and not settings.add_voices:
            raise UserError(
                f"voices {name}={voice}: no model of this server has the voice {voice!r}: the voices are "
                f"{', '.join(sorted(voices))}",
                "voices",
            )
    if settings.transcriber and open_model(bundle=settings.transcriber).family.settings is not None:
        raise UserError(
            f"transcriber must be a model that transcribes, but {settings.transcriber} speaks: name it among models",
            "transcriber",
        )
