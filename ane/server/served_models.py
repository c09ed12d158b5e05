"""The models of a server: opened when they are first needed, released when others need their memory or nobody does.

``ServedModels`` is for the engine's thread alone.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ane.backends import load_backend
from ane.backends.torch.backend import TorchBackend
from ane.backends.torch.device import return_freed_memory
from ane.bundles import Model, find_bundle, open_model
from ane.models.lane_sharing import LaneSharing, StepScheduler
from ane.server.parallel_calls import CallRunner, ParallelBackend
from ane.server.settings import ServerSettings
from ane.system import paths
from ane.system.errors import UserError
from ane.voices import RANDOM, list_voices

LOGGER = logging.getLogger("ane.server")
REST_SECONDS = 5.0      # without a request, after which freed memory is returned: it takes a tenth of a second
DEFAULT_VOICE = "default"       # the only one of a model without voices, and a name for each model's own


@dataclass
class ServedModel:
    """A loaded model.

    Attributes:
        speaker: the family's synthesizer, or what transcribes.
        size: bytes of its bundle on disk. users: jobs that use it now.
    """

    name: str
    speaker: Any
    size: int
    users: int = 0
    used: float = field(default_factory=time.monotonic)
    voices: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Model:
        return self.speaker.model

    def voice(self, name: str) -> Any:
        """What ``speak`` takes for a voice that ``voice_names`` lists; the latents are read once."""
        if name == RANDOM:
            return name
        if name not in self.voices:
            self.voices[name] = self.speaker.prepare(voice=None if name == DEFAULT_VOICE else name)
        return self.voices[name]


class ServedModels:
    """The models that a server has loaded, by name.

    Args:
        scheduler: decides when streams that share lanes take a step.
        run_call: runs network calls of models on the CPU.
    """

    def __init__(self, settings: ServerSettings, scheduler: StepScheduler, run_call: CallRunner):
        self.settings, self.scheduler = settings, scheduler
        self._parallel_run, self._loading = run_call, False
        self._loaded: dict[str, ServedModel] = {}
        self._tidied = 0.0

    @property
    def loaded(self) -> list[str]:
        return list(self._loaded)

    @contextmanager
    def using(self, name: str):
        """A model, loaded now if it is not; it is not released within the block."""
        served = self._loaded.get(name) or self._load(name)
        served.users += 1
        try:
            yield served
        finally:
            served.users -= 1
            served.used = time.monotonic()

    def release_unused(self) -> None:
        """Release the models that nobody has used for ``idle_release`` seconds; return memory when nobody uses any."""
        names: list[str] = []
        if self.settings.idle_release is not None:
            since = time.monotonic() - self.settings.idle_release
            names = [name for name, served in self._loaded.items() if not served.users and served.used < since]
            for name in names:
                self._release(name)
        last_use = max((served.used for served in self._loaded.values()), default=0.0)
        rested = self._tidied < last_use < time.monotonic() - REST_SECONDS
        if (names or rested) and not any(served.users for served in self._loaded.values()):
            self._tidied = time.monotonic()
            gc.collect()
            return_freed_memory(torch.device("cpu"))

    def pieces(self, served: ServedModel, stream: Any) -> Iterator[Any]:
        """The pieces of a stream; each is made in one call, beside those of others, if it needs no shared lanes."""
        if isinstance(served.speaker, LaneSharing) or not on_cpu(served.speaker.backend):
            yield from stream
            return
        running = False
        try:
            while True:
                running = True
                piece = self._parallel_run(partial(next, stream, None), stream.close)
                running = False
                if piece is None:
                    return
                yield piece
        finally:
            if not running:
                stream.close()

    def _run_call(self, call: Callable[[], Any]) -> Any:
        return call() if self._loading else self._parallel_run(call)

    def _load(self, name: str) -> ServedModel:
        """Load a model, during which no other job runs, so that none loads it too."""
        self._loading = True
        try:
            return self._loaded_model(name)
        finally:
            self._loading = False

    def _loaded_model(self, name: str) -> ServedModel:
        folder = find_bundle(name)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        self._make_room(size)
        began = time.monotonic()
        model = open_model(bundle=name)
        backend = load_backend(self.settings.backend, model, self.settings.precision, self.settings.threads,
                               None if model.family.stages is None else True, notice=LOGGER.info)
        if isinstance(backend, TorchBackend) and on_cpu(backend):
            backend = ParallelBackend(backend, self._run_call)
        served = ServedModel(name, self._speaker(model, backend), size)
        self._loaded[name] = served
        LOGGER.info("model loaded", extra={"fields": {"model": name, "backend": getattr(backend, "name", ""),
                                                      "seconds": round(time.monotonic() - began, 3)}})
        return served

    def _speaker(self, model: Model, backend: Any) -> Any:
        if model.family.transcribes:
            return model.family.transcriber(model, backend)
        speaker = model.family.synthesizer(model, backend)
        if isinstance(speaker, LaneSharing):
            speaker.share_lanes(self.scheduler, self.settings.lanes)
        speaker.prepare()
        return speaker

    def _make_room(self, size: int) -> None:
        """Release the least recently used models until another of this size fits, as far as nobody uses them."""
        limit = self.settings.memory
        idle = sorted((served for served in self._loaded.values() if not served.users), key=lambda served: served.used)
        while limit is not None and idle and sum(served.size for served in self._loaded.values()) + size > limit:
            self._release(idle.pop(0).name)

    def _release(self, name: str) -> None:
        del self._loaded[name]
        LOGGER.info("model released", extra={"fields": {"model": name}})
        gc.collect()


def on_cpu(backend: Any) -> bool:
    """Whether several threads may call it at a time."""
    return isinstance(backend, ParallelBackend) or (isinstance(backend, TorchBackend) and backend.device.type == "cpu")


def voice_names(model: Model) -> list[str]:
    """Names of the voices that a client may ask for."""
    if names := model.family.voice_names(model):
        return names
    if model.family.voice_widths(model) is None:
        return [DEFAULT_VOICE]
    folders: list[Path] = [folder for folder in (model.voices, paths.voices_dir()) if folder is not None]
    return [*list_voices(folders), RANDOM]


def check_models(settings: ServerSettings) -> None:
    """Raise UserError, before the server starts, for a bundle that is not there or cannot speak."""
    for name in settings.models:
        model = open_model(bundle=name)
        if model.family.transcribes:
            raise UserError(f"{name} is a {model.family.title} model, which cannot speak: name it as transcriber")
    if settings.transcriber and not open_model(bundle=settings.transcriber).family.transcribes:
        raise UserError(f"transcriber must be a model that transcribes, and {settings.transcriber} speaks")
