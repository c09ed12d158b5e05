"""Turn text into speech with any model, as one array or as a stream.

``Speaker`` does the work that is the same for every model: it checks the request, finds the voices, and applies speed,
volume and pauses to the sound. Each kind of model (such as Tortoise or FastSpeech) adds two methods. ``chunks`` splits
the text into chunks, each short enough for one pass of the network, and ``render`` turns the chunks into sound.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ane.bundles import Model
from ane.speech.async_speech import AsyncSpeech
from ane.speech.calls import SpeechCall, Texts, takes_fields, takes_texts_and_fields
from ane.speech.chunks import Chunk, RenderedChunk, up_to_final
from ane.speech.incremental_stream import IncrementalStream, begin_stream, check_cast
from ane.speech.lanes import Lanes
from ane.speech.options import SpeechOptions
from ane.speech.request import REQUEST_OPTIONS, SpeechContext, SpeechRequest, TextUsage, check_option, chosen_settings
from ane.speech.settings import SpeechSettings
from ane.speech.stream import Speech, Stream
from ane.speech.text_notes import notes_on_text
from ane.speech.turns import Turns
from ane.system.errors import NotFoundError, UserError, check_type, naming
from ane.system.timeline import closing_source
from ane.text.cast import cast_of
from ane.voices import Voice, check_named_voice, voice_names

DEFAULT_VOICE = "default"  # name that stands for a model's default voice, in Python and on the server
Begun = tuple[dict[str, Any], Iterator[RenderedChunk]]  # facts of a request, and the work that makes its sound
LOGGER = logging.getLogger("ane.speech")


class Speaker(AsyncSpeech):
    """A model that is loaded on a backend and can speak.

    Call ``speak`` for one text, ``speak_all`` for several texts, ``stream`` to get the sound while the model makes it,
    and ``feed`` while the text itself is still arriving. All four methods take the other arguments of ``speak``.

    To add a kind of model, subclass ``Speaker``. Set ``settings``, ``sample_rate`` and ``speeds``, and implement
    ``chunks`` and ``render``. Override ``networks`` if some settings do not need all of the model's networks.

    A model that has several CPU threads may speak two chunks of a text at once. ``AsyncSpeech`` adds the methods for
    programs that use asyncio.

    Attributes:
        settings: Class of this model's settings.
        sample_rate: Samples per second of the sound it makes.
        speeds: Slowest and fastest speed that a request may ask for.
        stretches: Whether ``Speaker`` stretches the finished sound to the requested speed. If not, the networks speak
            at that speed themselves.
    """

    settings: type[SpeechSettings]
    sample_rate: int
    speeds: tuple[float, float]
    stretches = False

    def __init__(self, model: Model, backend: Any):
        super().__init__()
        self.model, self.backend = model, backend
        self.warned: set[str] = set()  # notes that this speaker has already logged
        self.loaded_by: tuple[Any, ...] | None = None  # the function that opened this speaker, and its arguments

    def __repr__(self) -> str:
        voice = f", voice {self.model.default_voice}" if self.model.default_voice else ""
        return f"<Speaker: model {self.model.name}{voice}, backend {self.backend.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the call of ``ane.load`` that made this speaker. Unpickling repeats the call and loads the model."""
        if self.loaded_by is None:
            raise UserError(f"{self!r} cannot be pickled, because ane.load did not make it: load its model there")
        return self.loaded_by

    # Each kind of model defines or overrides the methods below

    def networks(self, settings: Any) -> list[str]:
        """List the names of the networks that these settings need."""
        return sorted(self.model.networks)

    @abstractmethod
    def chunks(self, request: SpeechRequest, context: SpeechContext) -> Sequence[Chunk]:
        """Split the text of a request into one or more chunks. Raises UserError if there is nothing to say."""

    @abstractmethod
    def render(self, chunks: Sequence[Any], request: SpeechRequest, context: SpeechContext) -> Iterator[RenderedChunk]:
        """Yield every chunk with its sound, in order. The caller applies speed, volume and pauses to the sound.

        The caller reads all sound of one chunk before it takes the next chunk. Closing the iterator releases the
        networks.
        """

    def with_defaults(self, request: SpeechRequest) -> SpeechRequest:
        """Fill in the settings, cast and voice that a request leaves open. Returns a complete request unchanged.

        Raises:
            UserError: A field has no effect on this model, or the settings, preset, cast or speed are invalid.
        """
        if self.model.is_only_voice(request.voice) or (
            request.voice == DEFAULT_VOICE and DEFAULT_VOICE not in self.voices
        ):
            request = request.changed(voice=None)
        settings = chosen_settings(self.settings, self.model, request.preset, request.settings)
        for name, option in REQUEST_OPTIONS.items():
            if option.needs and getattr(request, name) is not None:
                check_option(self.model, name)
        slowest, fastest = self.speeds
        if not slowest <= request.speed <= fastest:
            raise UserError(f"speed must be from {slowest:g} to {fastest:g}, got {request.speed:g}", "speed")
        cast = cast_of(request.cast, request.quote_voice)
        voice = cast.narrator if cast and cast.narrator and request.voice is None else request.voice
        return request.changed(settings=settings, preset=None, cast=cast, voice=voice)

    def voice_of(self, request: SpeechRequest, context: SpeechContext) -> Any:
        """Convert the request's voice to the object that ``render`` takes.

        Raises:
            UserError: The voice does not suit the model.
        """
        return request.voice

    def check_voice(self, request: SpeechRequest, context: SpeechContext) -> None:
        """Raise the errors of ``voice_of`` that need no network."""
        self.voice_of(request, context)

    def facts(self, request: SpeechRequest, voice: Any) -> dict[str, Any]:
        """Return what the result will report about its request, such as the seed. Every counter starts at 0.

        Args:
            request: The complete request.
            voice: The voice that ``voice_of`` returned.
        """
        return {}

    def normaliser(self, settings: Any) -> Callable[[str], str]:
        """Return the function that spells out numbers and abbreviations.

        The caller applies the lexicon to the text first.
        """
        return str

    def shared_lanes(self, lanes: int, turns: Turns | None = None) -> Lanes | None:
        """Create decoder lanes that several streams can share. Pass them to each stream as ``SpeechContext.lanes``.

        Args:
            lanes: Number of lanes, which are rows of the decoder's batch.
            turns: Turns of the threads that use the lanes, as for ``Lanes``.

        Returns:
            The lanes, or ``None`` if this kind of model has no lanes.
        """
        return None

    # The methods below are the same for every kind of model

    @property
    def voices(self) -> list[str]:
        """Names of the voices that ``speak`` takes. A model with only one voice has an empty list."""
        return voice_names(self.model)

    def voice_of_clips(self, clips: Sequence[np.ndarray] | np.ndarray, sample_rate: int, name: str = "clips") -> Voice:
        """Clone the voice of the person who speaks in the clips. Pass the result to ``speak`` as ``voice``.

        To store the cloned voice in a file, call ``ane.voices.save_voice``.

        Args:
            clips: One clip or several clips. A clip has float samples within ±1, (S,).
            sample_rate: Samples per second of the clips.
            name: Name of the voice in messages.

        Raises:
            UserError: A clip is too short, silent or has samples that are not finite, or the model cannot clone voices.
        """
        raise UserError(
            f"{self.model.name} is a {self.model.family.title} model, which cannot make a voice from clips: "
            "use a Tortoise model"
        )

    @takes_fields(SpeechRequest)
    def request(self, request: SpeechRequest) -> SpeechRequest:
        """Create a request from its fields, and fill in defaults. Raises the errors of ``with_defaults``."""
        return self.with_defaults(request)

    @takes_fields(SpeechCall)
    def speak(self, call: SpeechCall) -> Speech:
        """Speak a text.

        Args:
            {fields}

        Raises:
            UserError: The text has nothing to say, its markup is invalid, or it is too long for one pass and the
                settings forbid splitting. The speed is out of range. A voice is unknown or does not suit the model. An
                argument has no effect on this kind of model. The model lacks a network. Memory ran out.
        """
        return self.speech_of(call, call.context(batched=True))

    @takes_texts_and_fields(SpeechCall)
    def speak_all(self, texts: Texts, call: SpeechCall) -> Iterator[Speech]:
        """Speak several texts together, so that they share batches of the decoder and passes of other networks.

        Each text sounds the same as if ``speak`` spoke it with the same seed. Work begins when you take the first
        ``Speech``. The iterator yields the speeches in the order of the texts, and yields each as soon as it is ready.
        """
        if isinstance(texts, str):
            raise UserError(f"texts must be a list of texts, got {texts!r}: `speak` takes one text", "texts")
        check_type("texts", texts, Iterable, "a list of texts")
        return self.speeches_of(texts, self.with_defaults(call), call.context(batched=True), "texts")

    @takes_fields(SpeechCall)
    def stream(self, call: SpeechCall) -> Stream:
        """Speak a text, and return an iterator over pieces of its sound, which the model makes while you read them.

        The arguments and errors are the same as for ``speak``, except that the setting ``best`` must be 1. If the model
        has no diffusion network, the joined pieces equal the sound of ``speak`` up to rounding. A diffusion network
        processes a long chunk in windows (``ane.models.tortoise.diffusion``), which changes its sound slightly.
        """
        return self.stream_of(call, call.context())

    @takes_fields(SpeechCall)
    def speak_in_chunks(self, call: SpeechCall) -> Stream:
        """Speak a text, and return its sound chunk by chunk.

        A long text takes no more memory than a short text. The joined pieces are exactly the sound that ``speak``
        returns. The arguments and errors are the same as for ``stream``.
        """
        return self.stream_of(call, call.context(batched=True))

    @takes_texts_and_fields(SpeechCall)
    def feed(self, texts: Iterable[str], call: SpeechCall) -> IncrementalStream:
        """Speak a text while it is still arriving, such as the answer of a language model.

        A piece of the text may end anywhere, even within a word. The words are read as if the whole text had arrived at
        once. The seed is the same for the whole text. The other arguments and the errors are the same as for ``speak``.

        Args:
            texts: Pieces of the text, in order.
        """
        return self.feed_of(texts, call, call.context())

    # The methods below do the work of the methods above, for a request and the context of the work

    def speech_of(self, request: SpeechRequest, context: SpeechContext) -> Speech:
        """Speak a request and return all of its sound (see ``speak``)."""
        [speech] = self.speeches_of([request.text], request, context)
        return speech

    def speeches_of(
        self, texts: Iterable[str], request: SpeechRequest, context: SpeechContext, parameter: str = ""
    ) -> Iterator[Speech]:
        """Speak every text with the settings of the request, but not its ``text`` (see ``speak_all``).

        ``parameter`` is the parameter that took the texts. Errors name it with the index of the text.
        """
        request = self.with_defaults(request)
        context.timeline.mark_text_ready()
        requests, chunks = [], []
        for index, text in enumerate(texts):
            with naming(f"{parameter}[{index}]", parameter):
                requests.append(request.changed(text=text))
                chunks.append(self._chunks(requests[-1], replace(context, usage=TextUsage(context.usage.limits))))
        if not requests:
            return
        facts, rendered = self._begin(requests, chunks, context)
        with closing_source(rendered):
            began = context.timeline.text_ready
            for request, text_chunks in zip(requests, chunks, strict=True):
                begun = facts, up_to_final(rendered)
                yield self._stream(request, text_chunks, context, begun, began).collect()
                began = context.timeline.now()

    def stream_of(self, request: SpeechRequest, context: SpeechContext) -> Stream:
        """Speak a request as a stream (see ``stream``)."""
        return self.stream_later(request, context)()

    def stream_later(self, request: SpeechRequest, context: SpeechContext) -> Callable[[], Stream]:
        request = self.with_defaults(request)
        if (best := getattr(request.settings, "best", 1)) > 1:
            raise UserError(f"a stream returns the best candidate only: best must be 1, got {best}")
        context.timeline.mark_text_ready()
        return partial(self._stream, request, self._chunks(request, context), context)

    def feed_of(self, texts: Iterable[str], request: SpeechRequest, context: SpeechContext) -> IncrementalStream:
        """Speak a text that is still arriving. All fields of the request apply except ``text`` (see ``feed``)."""
        check_type("texts", texts, Iterable, "pieces of text")
        request = self.with_defaults(request.changed(ssml=False))
        self._require(request)
        check_cast(request)
        request = request.changed(voice=self.voice_of(request, context))
        return IncrementalStream(
            texts,
            partial(begin_stream, self.stream_of, request, context),
            self.normaliser(request.settings),
            request.lexicon,
            self.sample_rate,
            context.timeline,
            request.markdown,
        )

    def prepare(
        self, voice: str | Path | Voice | None = None, settings: SpeechOptions | SpeechSettings | None = None
    ) -> str | Voice | None:
        """Load the voice and the networks in advance, so that the first text starts sooner.

        Args:
            voice: Voice, as for ``speak``.
            settings: Settings, as for ``speak``. ``prepare`` loads only the networks that these settings need.

        Returns:
            The loaded voice, which ``speak`` takes as ``voice``. ``None`` stands for the only voice of a model.

        Raises:
            UserError: The voice or the settings are wrong, in the ways that ``speak`` lists.
        """
        request = self.request("1", voice, settings=settings)
        self._require(request)
        self.backend.load(*self.networks(request.settings))
        self.chunks(request, SpeechContext())  # imports the library that spells out numbers, which takes a second
        return self.voice_of(request, SpeechContext())

    # Helpers

    def _chunks(self, request: SpeechRequest, context: SpeechContext) -> Sequence[Chunk]:
        """Split the text of a request into chunks, and check the networks and voices that the chunks need."""
        chunks = self.chunks(request, context)
        self._require(request)
        for name in dict.fromkeys(chunk.named for chunk in chunks if chunk.named):
            self.named_voice(name, request, context, self.check_voice)
        self.check_voice(request, context)
        return chunks

    def _stream(
        self,
        request: SpeechRequest,
        chunks: Sequence[Chunk],
        context: SpeechContext,
        begun: Begun | None = None,
        began: float | None = None,
    ) -> Stream:
        """Make the stream of a complete request. ``begun`` is the result of ``_begin``, if it was called already."""
        facts, rendered = begun or self._begin([request], [chunks], context)
        notes = self._notes(request, chunks)
        return Stream(rendered, chunks, facts, self.sample_rate, self.stretches, context, notes, began)

    def _begin(
        self, requests: Sequence[SpeechRequest], chunks: Sequence[Sequence[Chunk]], context: SpeechContext
    ) -> Begun:
        """Load the voices of requests that differ only in their texts, and prepare to render their chunks.

        Returns the facts that all requests share, and the iterator that renders all chunks.
        """
        voices: dict[str, Any] = {}
        pairs = [(request, chunk) for request, of_text in zip(requests, chunks, strict=True) for chunk in of_text]
        for request, chunk in pairs:
            if chunk.named and chunk.named not in voices:
                voices[chunk.named] = self.named_voice(chunk.named, request, context)
        voices[""] = self.voice_of(requests[0], context)
        for chunk in (all_chunks := [chunk for _, chunk in pairs]):
            chunk.voice = voices[chunk.named]
        return self.facts(requests[0], voices[""]), self.render(all_chunks, requests[0], context)

    def named_voice(
        self, name: str, request: SpeechRequest, context: SpeechContext, look_up: Callable[..., Any] | None = None
    ) -> Any:
        """Look up a voice that the text or its cast names, and return the result of ``voice_of`` for the voice.

        Raises:
            UserError: The voice is unknown, or does not suit the model. The message gives the line of the text.
        """
        cast_voices = request.roles.voices if request.roles else {}
        voice = cast_voices.get(name, name)
        try:
            check_option(self.model, "voice")
            if context.named_voice is None and name not in cast_voices and self.model.has_latents:
                check_named_voice(name, self.voices)
            voice_or_name = context.named_voice(voice) if context.named_voice else voice
            return (look_up or self.voice_of)(replace(request, voice=voice_or_name), context)
        except UserError as error:
            cast = "" if voice == name else f" of {name} in the cast"
            line = request.text.count("\n", 0, max(0, request.text.find(name))) + 1
            kind = NotFoundError if isinstance(error, NotFoundError) else UserError
            raise kind(f"line {line}, voice {voice!r}{cast}: {error}") from error

    def _notes(self, request: SpeechRequest, chunks: Sequence[Chunk]) -> list[str]:
        """Return notes on text that the model cannot speak. Log a note if this speaker has not logged it before."""
        notes = notes_on_text(request, self.normaliser(request.settings), chunks)
        for note in [note for note in notes if note not in self.warned]:
            self.warned.add(note)
            LOGGER.warning("%s", note)
        return notes

    def _require(self, request: SpeechRequest) -> None:
        """Raise UserError if the model lacks a network that the request's settings need."""
        for network in self.networks(request.settings):
            self.model.require(network)
