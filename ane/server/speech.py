"""Speech as a job: what a client asks for, checked, and the work that speaks it."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from ane.bundles import Model, open_model
from ane.bundles.opening import FORMER_NAMES
from ane.models.tortoise.settings import PRESETS, default_preset
from ane.server.errors import RefusedError
from ane.server.jobs import Job, Work
from ane.server.schemas import SHARED, CastFields, SpeechFields
from ane.server.served_models import DEFAULT_VOICE, ServedModel, ServedModels
from ane.server.settings import OPENAI_MODELS, OPENAI_TRANSCRIBERS, OPENAI_VOICES, ServerSettings
from ane.speech.incremental_stream import COUNTED, IncrementalStream
from ane.speech.request import SpeechContext, SpeechRequest, TextUsage
from ane.speech.stream import Stream
from ane.speech.words import SpokenWord
from ane.system.checked import validated
from ane.text import Lexicon
from ane.text.cast import Cast
from ane.voices import voice_names


@validated
class ServedRequest(SpeechRequest):
    """A request whose names are known to be of this server; a text of "" arrives later."""

    model: str = ""


@dataclass(frozen=True)
class SoundPiece:
    """A piece of sound (n,) float32 within ±1 at ``rate`` Hz, the words whose times are newly known, and warnings."""

    audio: np.ndarray
    rate: int
    words: Sequence[SpokenWord] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class SpokenFacts:
    """What is known at the end: seconds of sound, units that the model made, and warnings."""

    seconds: float
    made: int
    notes: Sequence[str]


class Catalogue:
    """The models that clients may name, and their voices. Bundles are opened here, their weights not read."""

    def __init__(self, settings: ServerSettings):
        self.settings = settings
        self.models: dict[str, Model] = {name: open_model(bundle=name) for name in settings.models}
        self._voices: dict[str, list[str]] = {}

    def request(self, fields: SpeechFields, text: str = "") -> ServedRequest:
        """What a client asks for. Raises UserError for a name of nothing here, or a faulty lexicon."""
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
        """The model that a client's name means. Raises RefusedError for a name of none."""
        if name not in self.models:
            name = FORMER_NAMES.get(name, name)
        if name in OPENAI_MODELS and name not in self.models:
            return self.settings.models[0]
        if name not in self.models:
            raise RefusedError(
                f"no model is named {name!r} here; the models are {', '.join(self.models)}",
                404,
                "model",
                "model_not_found",
            )
        return name

    def transcriber(self, name: str) -> str:
        """As ``model``, for transcriptions."""
        known = self.settings.transcriber
        if not known:
            raise RefusedError("this server has no model that transcribes", 404, "model", "model_not_found")
        if name not in (known, *OPENAI_TRANSCRIBERS):
            raise RefusedError(
                f"no model that transcribes is named {name!r} here; it is {known}", 404, "model", "model_not_found"
            )
        return known

    def voices(self, model: str) -> list[str]:
        if model not in self._voices:
            self._voices[model] = voice_names(self.models[model]) or [DEFAULT_VOICE]
        return self._voices[model]

    def presets(self, model: str) -> list[str]:
        """Presets of a model, the default first; none if it has none."""
        if not self.models[model].presets:
            return []
        default = default_preset(self.models[model].settings)
        return [default, *(name for name in PRESETS if name != default)]

    def cast(self, model: str, fields: CastFields | None) -> Cast | None:
        """A client's cast. Raises RefusedError for a voice that is not there, or a model of one voice."""
        if fields is None:
            return None
        if not self.models[model].takes_voices:
            raise RefusedError(f"cast has no effect on {model}, which has one voice: leave it out", 400, "cast")
        cast = Cast(**fields.model_dump())
        for voice in cast.voices.values():
            self.voice(model, voice)
        return cast

    def check_new_name(self, name: str) -> None:
        """Raise RefusedError for a new voice's name that means something here already: all clients would hear it."""
        reserved = {
            DEFAULT_VOICE,
            *OPENAI_VOICES,
            *self.settings.voices,
            *(model.default_voice for model in self.models.values() if model.default_voice),
        }
        if name.casefold() in {each.casefold() for each in reserved}:
            raise RefusedError(
                f"the name {name} is reserved: other clients would hear the new voice under it; choose another",
                400,
                "name",
            )

    def forget_voices(self) -> None:
        """Look for voices again: one was added."""
        self._voices.clear()

    def voice(self, model: str, name: str | None) -> str:
        """The voice that a client's name means. Raises RefusedError for a name of none; a path never is one."""
        name = DEFAULT_VOICE if name is None else name
        known, meant = self.voices(model), self.settings.voices.get(name, name)
        if meant in known or meant == DEFAULT_VOICE:
            return meant
        # examples of OpenAI's API use its first name
        if name == OPENAI_VOICES[0] or self.models[model].is_only_voice(meant):
            return DEFAULT_VOICE
        why = (
            f"no voice is set for OpenAI's name {name!r}: `ane serve --map-voice {name}=VOICE` sets one"
            if meant in OPENAI_VOICES
            else f"{model} has no voice {meant!r}" + (f", which {name!r} means here" if meant != name else "")
        )
        names = ", ".join(dict.fromkeys([DEFAULT_VOICE, *known[:20]]))
        raise RefusedError(f"{why}; the voices are {names}", 400, "voice", "voice_not_found")


def read_client_lexicon(body: SpeechFields) -> Lexicon | None:
    """A lexicon of words and their respellings. Raises UserError when two of them are the same word."""
    return Lexicon(body.lexicon or {}, body.unreadable) if body.lexicon or body.unreadable != "nearest" else None


def words_event(words: Sequence[SpokenWord]) -> dict[str, Any]:
    """The event that states when words are heard."""
    return {"type": "speech.audio.words", "words": [word.as_dict() for word in words]}


def speak(models: ServedModels, request: ServedRequest, catalogue: Catalogue) -> Work:
    """Work that speaks the request's text, or if that is "" the texts that the client sends while they are spoken: puts
    ``SoundPiece``s, then ``SpokenFacts``.
    """

    def work(job: Job) -> None:
        with models.using(request.model) as served:
            job.wait()
            context = SpeechContext(
                job.check,
                lanes=served.lanes,
                priority=lambda: job.priority,
                check=job.check,
                usage=TextUsage(models.settings.limits),
                named_voice=lambda name: served.voice(catalogue.voice(served.name, name)),
            )
            wanted = in_its_voice(served, request)
            if request.text:
                job.text_at = time.monotonic()
                stream = served.speaker.stream_of(wanted, context)
            else:
                stream = served.speaker.feed_of(job.texts(), wanted, context)
            send_sound(job, stream)

    return work


def send_sound(job: Job, stream: Stream | IncrementalStream) -> None:
    """Send the sound of a stream, then its facts."""
    stated = 0

    def new_words() -> list[SpokenWord]:
        nonlocal stated
        before, stated = stated, len(stream.words)
        return list(stream.words[before:])

    with closing(stream):
        for audio in stream:
            job.send(SoundPiece(audio, stream.sample_rate, new_words(), stream.notes), len(audio) / stream.sample_rate)
        if words := new_words():
            job.put(SoundPiece(np.zeros(0, np.float32), stream.sample_rate, words))
        made = sum(stream.facts.get(name, 0) for name in COUNTED)
        job.put(SpokenFacts(stream.seconds, made, stream.notes))


def in_its_voice(served: ServedModel, request: ServedRequest) -> ServedRequest:
    """The request with its voice as the model takes it. Raises UserError for what the model cannot do."""
    if request.preset is not None and not served.model.presets:
        raise RefusedError(f"preset has no effect on {served.model.family.title} models: leave it out", 400, "preset")
    if request.seed is not None and not served.model.uses_seed:
        raise RefusedError(
            f"seed has no effect on {request.model}, which draws no random numbers: leave it out", 400, "seed"
        )
    return request.changed(voice=served.voice(request.voice) if served.model.takes_voices else None)
