"""Check a client's request for speech, and make the function that speaks it."""

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.bundles import Model, open_model
from ane.bundles.opening import FORMER_NAMES
from ane.models.tortoise.settings import PRESETS, default_preset
from ane.server.errors import FaultError, RefusedError
from ane.server.jobs import Job, Work
from ane.server.schemas import SHARED, CastFields, SpeechFields
from ane.server.served_models import ServedModel, ServedModels
from ane.server.settings import OPENAI_MODELS, OPENAI_TRANSCRIBERS, OPENAI_VOICES, ServerSettings
from ane.speech.incremental_stream import COUNTED, IncrementalStream
from ane.speech.request import SpeechContext, SpeechRequest, TextUsage
from ane.speech.speaker import DEFAULT_VOICE
from ane.speech.stream import Stream
from ane.speech.words import SpokenWord
from ane.system.checked import validated
from ane.system.errors import NoEffectError, UserError
from ane.text import Lexicon
from ane.text.cast import Cast
from ane.voices import voice_names


@validated
class ServedRequest(SpeechRequest):
    """A request for speech whose model and voice exist on this server.

    If its text is "", the text will arrive later.
    """

    model: str = ""


@dataclass(frozen=True)
class SoundPiece:
    """A piece of sound, the words whose times have become known with it, and all warnings so far."""

    audio: np.ndarray
    rate: int
    words: Sequence[SpokenWord] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class SpokenFacts:
    """Facts about finished speech.

    Attributes:
        seconds: Length of the sound in seconds.
        units: Number of codes, frames or tokens that the model made.
        notes: Warnings.
    """

    seconds: float
    units: int
    notes: Sequence[str]


class Catalogue:
    """The models that clients may name, and the voices of each model.

    The catalogue opens bundles, but reads no weights.
    """

    def __init__(self, settings: ServerSettings):
        self.settings = settings
        self.models: dict[str, Model] = {name: open_model(bundle=name) for name in settings.models}
        self._voices: dict[str, list[str]] = {}

    def request(self, fields: SpeechFields, text: str = "") -> ServedRequest:
        """Make a request from a client's fields. Raises UserError for an unknown name or a faulty lexicon."""
        name = self.model(fields.model)
        return ServedRequest(
            text,
            self.voice(name, fields.voice_name),
            lexicon=read_client_lexicon(fields),
            cast=self.cast(name, fields.cast),
            model=name,
            **{shared: getattr(fields, shared) for shared in SHARED},
        )

    def model(self, name: str) -> str:
        """Return the model that a client's name means. Raises RefusedError if the name means no model."""
        if name not in self.models:
            name = FORMER_NAMES.get(name, name)
        if name in OPENAI_MODELS and name not in self.models:
            return self.settings.models[0]
        if name not in self.models:
            raise RefusedError(
                f"no model is named {name!r} here: the models are {', '.join(self.models)}",
                404,
                "model",
                "model_not_found",
            )
        return name

    def transcriber(self, name: str) -> str:
        """Return the model that transcribes. Raises RefusedError if there is none, or the name means another model."""
        known = self.settings.transcriber
        if not known:
            raise RefusedError("this server has no model that transcribes", 404, "model", "model_not_found")
        if name not in (known, *OPENAI_TRANSCRIBERS):
            raise RefusedError(
                f"no model that transcribes is named {name!r} here: use {known}", 404, "model", "model_not_found"
            )
        return known

    def cloner(self, name: str) -> str:
        """Return the model that a client's name means, or for "" the first model that makes voices from clips.

        Raises RefusedError if the model makes no voices from clips, or if no model does.
        """
        able = [model for model, bundle in self.models.items() if bundle.has_latents]
        model = self.model(name) if name else (able or list(self.models))[0]
        if model not in able:
            raise RefusedError(
                f"{model} makes no voices from clips: "
                + (f"use the model {able[0]}" if able else "start the server with a Tortoise model, such as demo"),
                400,
                "model",
            )
        return model

    def voices(self, model: str) -> list[str]:
        """List the voices of a model. Raises FaultError if a file of the model is damaged."""
        stored = self._voices  # another thread may forget these lists at any time, even while this thread makes one
        if model not in stored:
            try:
                stored[model] = voice_names(self.models[model]) or [DEFAULT_VOICE]
            except UserError as error:
                raise FaultError(f"the server cannot read the voices of the model {model}", error) from error
        return stored[model]

    def presets(self, model: str) -> list[str]:
        """List the presets of a model. The default comes first."""
        if not self.models[model].presets:
            return []
        default = default_preset(self.models[model].settings)
        return [default, *(name for name in PRESETS if name != default)]

    def cast(self, model: str, fields: CastFields | None) -> Cast | None:
        """Check the cast that a client sent, and return it.

        Raises:
            RefusedError: The cast names an unknown voice, or the model has only one voice.
        """
        if fields is None:
            return None
        if not self.models[model].takes_voices:
            raise NoEffectError("cast", f"on {model}, which has one voice", "leave it out")
        cast = Cast(**fields.model_dump())
        for voice in cast.voices.values():
            self.voice(model, voice)
        return cast

    def check_new_name(self, name: str) -> None:
        """Raise RefusedError if a new voice must not have this name.

        Names that clients already use are reserved, because these clients would hear the new voice.
        """
        reserved = {
            DEFAULT_VOICE,
            *OPENAI_VOICES,
            *self.settings.voices,
            *(model.default_voice for model in self.models.values() if model.default_voice),
        }
        if name.casefold() in {taken.casefold() for taken in reserved}:
            raise RefusedError(
                f"the name {name} is reserved, because other clients would hear the new voice: choose another name",
                400,
                "name",
            )

    def has_voice(self, name: str) -> bool:
        """Return whether a client's name means a voice of any model."""
        for model in self.models:
            with suppress(RefusedError):
                self.voice(model, name)
                return True
        return False

    def forget_voices(self) -> None:
        """Forget the stored lists of voices, so that the next request finds new voices and no deleted ones."""
        self._voices = {}

    def voice(self, model: str, name: str | None) -> str:
        """Return the voice that a client's name means, which is never a path. Raises RefusedError if there is none."""
        name = DEFAULT_VOICE if name is None else name
        known, meant = self.voices(model), self.settings.voices.get(name, name)
        if meant in known or meant == DEFAULT_VOICE:
            return meant
        # examples in OpenAI's documentation use this name, so it always means a voice
        if name == OPENAI_VOICES[0] or self.models[model].is_only_voice(meant):
            return DEFAULT_VOICE
        why = (
            f"no voice is set for OpenAI's name {name!r} (`ane serve --map-voice {name}=VOICE` sets one)"
            if meant in OPENAI_VOICES
            else f"{model} has no voice {meant!r}" + (f", which {name!r} means here" if meant != name else "")
        )
        own = self.models[model].default_voice
        names = ", ".join(dict.fromkeys([DEFAULT_VOICE, *([own] if own else []), *known[:20]]))
        raise RefusedError(f"{why}: the voices are {names}", 400, "voice", "voice_not_found")


def read_client_lexicon(body: SpeechFields) -> Lexicon | None:
    """Make a lexicon from a client's respellings. Raises UserError if two respellings are for the same word."""
    return Lexicon(body.lexicon or {}, body.unreadable) if body.lexicon or body.unreadable != "nearest" else None


def words_event(words: Sequence[SpokenWord]) -> dict[str, Any]:
    """Return the event with the times at which words are spoken."""
    return {"type": "speech.audio.words", "words": [word.as_dict() for word in words]}


def speak(models: ServedModels, request: ServedRequest, catalogue: Catalogue) -> Work:
    """Make the work that speaks a request.

    The work gives its job ``SoundPiece`` items, and then one ``SpokenFacts``. If the text of the request is "", the
    work speaks the texts that the client sends, as they arrive.
    """

    def work(job: Job) -> None:
        with models.using(request.model) as served:
            job.wait()
            context = SpeechContext(
                job.check,
                lanes=served.lanes,
                priority=job.priority,
                check=job.check,
                usage=TextUsage(models.settings.limits),
                named_voice=lambda name: served.voice(catalogue.voice(served.name, name), prepared.settings),
            )
            prepared = with_loaded_voice(served, request)
            if request.text:
                job.text_at = time.monotonic()
                stream = served.speaker.stream_of(prepared, context)
            else:
                stream = served.speaker.feed_of(job.texts(), prepared, context)
            send_sound(job, stream)

    return work


def send_sound(job: Job, stream: Stream | IncrementalStream) -> None:
    """Pass the sound of a stream to the job's client, then the facts about the sound."""
    sent_words = 0

    def new_words() -> list[SpokenWord]:
        nonlocal sent_words
        before, sent_words = sent_words, len(stream.words)
        return list(stream.words[before:])

    with closing(stream):
        for audio in stream:
            job.send(SoundPiece(audio, stream.sample_rate, new_words(), stream.notes), len(audio) / stream.sample_rate)
        if words := new_words():
            job.put(SoundPiece(np.zeros(0, np.float32), stream.sample_rate, words))
        units = sum(stream.facts.get(name, 0) for name in COUNTED)
        job.put(SpokenFacts(stream.seconds, units, stream.notes))


def with_loaded_voice(served: ServedModel, request: ServedRequest) -> ServedRequest:
    """Add the loaded voice and the settings of the preset to a request.

    Raises UserError if the model cannot do what the request asks for.
    """
    if request.preset is not None and not served.model.presets:
        raise NoEffectError("preset", f"on {served.model.family.title} models", "leave it out")
    if request.seed is not None and not served.model.uses_seed:
        raise NoEffectError("seed", f"on {request.model}, which draws no random numbers", "leave it out")
    settings = served.speaker.settings.of(request.preset, served.model.settings)
    voice = served.voice(request.voice, settings) if served.model.takes_voices else None
    return request.changed(voice=voice, settings=settings, preset=None)
