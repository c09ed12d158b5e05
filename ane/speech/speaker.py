"""A model that speaks: text to chunks to sound, the same way for every kind of model, at once or as a stream."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ane.bundles import Model
from ane.speech.calls import SpeechCall, takes_fields, takes_texts_and_fields
from ane.speech.chunks import Chunk, RenderedChunk
from ane.speech.incremental_stream import IncrementalStream
from ane.speech.lanes import Lanes
from ane.speech.request import REQUEST_OPTIONS, SpeechContext, SpeechRequest, TextUsage, check_option, chosen_settings
from ane.speech.settings import SpeechSettings
from ane.speech.stream import Speech, Stream
from ane.speech.turns import Turns
from ane.system.errors import NotFoundError, UserError
from ane.system.timeline import closing_source
from ane.text import ANY_SCRIPT, NothingToSayError, is_ssml
from ane.text.cast import cast_of
from ane.text.other_languages import foreign_language
from ane.text.passages import last_voice
from ane.text.unicode_to_ascii import UNREADABLE, foreign_scripts, unread_signs
from ane.voices import Voice, check_named_voice, voice_names

MOST_SIGNS = 8  # in a note
LOGGER = logging.getLogger("ane.speech")


class Speaker(ABC):
    """A model on a backend. ``speak``, ``speak_all``, ``stream`` and ``feed`` synthesise speech; their arguments are
    the fields of ``SpeechRequest`` and ``SpeechCall``.

    A kind of model defines ``settings``, ``networks``, ``chunks`` and ``render``. Coroutines, also of several event
    loops, may share a speaker: their pieces take turns. With several threads a model may speak two chunks of a text at
    once.

    Attributes:
        settings: The class of the model's settings.
        speeds: The slowest and the fastest speed of a request.
        stretches: Whether the sound is stretched to its speed; otherwise the networks speak at that speed.
    """

    settings: type[SpeechSettings]
    sample_rate: int
    speeds: tuple[float, float]
    stretches = False

    def __init__(self, model: Model, backend: Any):
        self.model, self.backend = model, backend
        self.turns = Turns()  # of coroutines
        self.warned: set[str] = set()  # notes that were logged
        self.loaded_by: tuple[Any, ...] | None = None  # the function that opened it, and its arguments

    def __repr__(self) -> str:
        voice = f", voice {self.model.default_voice}" if self.model.default_voice else ""
        return f"<{type(self).__name__}: model {self.model.name}{voice}, backend {self.backend.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a speaker as the arguments of ``ane.load``, which opens its model again elsewhere."""
        if self.loaded_by is None:
            raise UserError(f"{self!r} cannot be pickled, because ane.load did not make it: load its model there")
        return self.loaded_by

    # Of a kind of model

    def networks(self, settings: Any) -> list[str]:
        """Names of the networks that speaking with these settings needs."""
        return sorted(self.model.networks)

    @abstractmethod
    def chunks(self, request: SpeechRequest, context: SpeechContext) -> Sequence[Chunk]:
        """The chunks of the request's text, at least one. Raises UserError when nothing can be spoken."""

    @abstractmethod
    def render(self, chunks: Sequence[Any], request: SpeechRequest, context: SpeechContext) -> Iterator[RenderedChunk]:
        """Yield the chunks with their sound, in order, before their delivery. The caller reads the sound of each before
        it takes the next; closing the iterator releases the networks.
        """

    def with_defaults(self, request: SpeechRequest) -> SpeechRequest:
        """Return the request with its settings and its cast; the request itself if it has them.

        Raises:
            UserError: A field has no effect on this model, or settings, preset, cast or speed are wrong.
        """
        if self.model.is_only_voice(request.voice):
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
        return request.changed(settings=settings, preset=None, cast=cast, quote_voice=None, voice=voice)

    def voice_of(self, request: SpeechRequest, context: SpeechContext) -> Any:
        """Return the request's voice as ``render`` takes it. Raises UserError for a voice that is unsuitable."""
        return request.voice

    def facts(self, request: SpeechRequest, voice: Any) -> dict[str, Any]:
        """What results state of a request and of the voice that ``voice_of`` returned, and 0 for what is counted."""
        return {}

    def normaliser(self, settings: Any) -> Callable[[str], str]:
        """How words of a text that arrives incrementally are read, after the lexicon."""
        return str

    def shared_lanes(self, lanes: int, turns: Turns | None = None) -> Lanes | None:
        """Lanes that streams may share, as ``SpeechContext.lanes``; None: this kind of model needs none. ``turns``:
        of ``Lanes``.
        """
        return None

    # Once for all

    @property
    def voices(self) -> list[str]:
        """Names of the voices that ``speak`` takes; none of a model that has one voice."""
        return voice_names(self.model)

    def voice_of_clips(self, clips: Sequence[np.ndarray] | np.ndarray, sample_rate: int, name: str = "clips") -> Voice:
        """Return a voice that clones the speaker of clips, for ``voice`` of ``speak``. ``ane.voices.save_voice`` stores
        it in a file.

        Args:
            clips: One clip (S,), or several, of float samples within ±1.
            sample_rate: Rate of the clips in Hz.
            name: Name of the voice in messages.

        Raises:
            UserError: A clip is too short, silent or not finite, or the model does not clone voices.
        """
        raise UserError(
            f"{self.model.name} is a {self.model.family.title} model, which does not make voices of clips: "
            "use a Tortoise model"
        )

    @takes_fields(SpeechRequest)
    def request(self, request: SpeechRequest) -> SpeechRequest:
        """Return the request with these fields, completed. Raises UserError as ``completed`` does."""
        return self.with_defaults(request)

    @takes_fields(SpeechCall)
    def speak(self, call: SpeechCall) -> Speech:
        """Speak a text. The arguments are the fields of ``SpeechRequest`` and ``SpeechCall``.

        Raises:
            UserError: There is nothing to say, markup asks for what cannot be done, a text is too long for one pass
                with splitting off, the speed is out of range, a voice is unknown or unsuitable, an argument has no
                effect on this kind of model, the model lacks a network, or memory ran out.
        """
        return self.speech_of(call, call.context(batched=True))

    @takes_texts_and_fields(SpeechCall)
    def speak_all(self, texts: Sequence[str], call: SpeechCall) -> Iterator[Speech]:
        """Speak several texts, each as ``speak`` does with the same seed; they share lanes and passes.

        Work begins when the first result is requested. Results are yielded in order, each as soon as it is ready.
        """
        return self.speeches_of(texts, call, call.context(batched=True))

    @takes_fields(SpeechCall)
    def stream(self, call: SpeechCall) -> Stream:
        """Speak a text and return its sound incrementally. Arguments and errors: ``speak``; ``best`` must be 1.

        Without diffusion the pieces join to what ``speak`` returns, up to rounding. With it, a long chunk is diffused
        in windows (``ane.models.tortoise.diffusion``), so its sound differs slightly.
        """
        return self.stream_of(call, call.context())

    @takes_fields(SpeechCall)
    def speak_in_chunks(self, call: SpeechCall) -> Stream:
        """``speak``, but the sound is returned chunk by chunk, so that a long text takes no more memory than a short
        one. The pieces join to exactly what ``speak`` returns. Arguments and errors: ``stream``.
        """
        return self.stream_of(call, call.context(batched=True))

    @takes_texts_and_fields(SpeechCall)
    def feed(self, texts: Iterable[str], call: SpeechCall) -> IncrementalStream:
        """Speak a text that arrives incrementally, such as a language model's answer, while it arrives.

        The words are those of the whole text. Its pieces are spoken with the same seed each.

        Args:
            texts: Pieces of the text in order, divided anywhere. The other arguments and errors: ``speak``.
        """
        return self.feed_of(texts, call, call.context())

    # The same for a request and its context

    def speech_of(self, request: SpeechRequest, context: SpeechContext) -> Speech:
        """Speak a request as a whole."""
        [speech] = self.speeches_of([request.text], request, context)
        return speech

    def speeches_of(self, texts: Sequence[str], request: SpeechRequest, context: SpeechContext) -> Iterator[Speech]:
        """``speak_all`` of a request for each of these texts."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise UserError(f"texts must be a list of texts, got {texts!r}: `speak` takes one text", "texts")
        request = self.with_defaults(request)
        if not (requests := [request.changed(text=text) for text in texts]):
            return
        chunks, facts, rendered = self._begin(requests, context)
        notes = [self._scripts(each) for each in requests]
        with closing_source(rendered):
            began = context.timeline.text_ready
            for own, noted in zip(chunks, notes, strict=True):
                yield Stream(
                    up_to_final(rendered), own, facts, self.sample_rate, self.stretches, context, noted, began
                ).collect()
                began = context.timeline.now()

    def stream_of(self, request: SpeechRequest, context: SpeechContext) -> Stream:
        """Return the stream of a request."""
        request = self.with_defaults(request)
        if (best := getattr(request.settings, "best", 1)) > 1:
            raise UserError(f"a stream returns the best candidate only: best must be 1, got {best}")
        [chunks], facts, rendered = self._begin([request], context)
        return Stream(rendered, chunks, facts, self.sample_rate, self.stretches, context, self._scripts(request))

    def feed_of(self, texts: Iterable[str], request: SpeechRequest, context: SpeechContext) -> IncrementalStream:
        """``feed`` of a request without a text."""
        request = self.with_defaults(request.changed(ssml=False))
        self._require(request)
        if (cast := request.roles) and cast.attributed and cast.voices:
            raise UserError(
                "cast has no effect on text that arrives incrementally, whose quotations are not complete: "
                "leave it out",
                "cast",
            )
        request = request.changed(voice=self.voice_of(request, context))

        def begin(text: str) -> Stream:
            spent = replace(context.usage)
            try:
                stream = self.stream_of(replace(request, text=text), context)
                context.voice = last_voice(text, context.voice)
                return stream
            except NothingToSayError:  # it is held back, and comes again with what follows
                context.usage = spent
                raise

        return IncrementalStream(
            texts,
            begin,
            self.normaliser(request.settings),
            request.lexicon,
            self.sample_rate,
            context.timeline,
            request.markdown,
        )

    def prepare(self, voice: Any = None, settings: Any = None) -> Any:
        """Load the networks that the settings need and the voice, so that the first text is spoken sooner.

        Returns what requests take for the voice. Errors: ``speak``.
        """
        request = self.request("1", voice, settings=settings)
        self._require(request)
        self.backend.load(*self.networks(request.settings))
        self.chunks(request, SpeechContext())  # the library that spells numbers takes a second to load
        return self.voice_of(request, SpeechContext())

    # For programs on asyncio

    @takes_fields(SpeechCall)
    async def speak_async(self, call: SpeechCall) -> Speech:
        """``speak`` with these arguments, in a thread, which ends its work even if the coroutine is cancelled."""
        return await self._work(partial(self.speech_of, call, call.context(batched=True)))

    @takes_fields(SpeechCall)
    async def stream_async(self, call: SpeechCall) -> AsyncIterator[np.ndarray]:
        """The pieces of ``stream`` with these arguments, each made in a thread when it is awaited.

        Work stops when the iterator is closed: use ``contextlib.aclosing`` to leave the loop early.
        """
        stream = await self._work(partial(self.stream_of, call, call.context()))
        try:
            while (piece := await self._work(partial(next, stream, None))) is not None:
                yield piece
        finally:
            await self._work(stream.close)

    async def _work(self, call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(self.turns.run, call)

    # Within

    def _begin(
        self, requests: Sequence[SpeechRequest], context: SpeechContext
    ) -> tuple[list[Sequence[Chunk]], dict[str, Any], Iterator[RenderedChunk]]:
        """Chunk every request (they differ in their texts only); return the chunks of each, their shared facts and the
        iterator that renders all.
        """
        context.timeline.mark_text_ready()
        # texts that are spoken together are requests of their own; a text that arrives in pieces is one
        contexts = (
            [context]
            if len(requests) == 1
            else [replace(context, usage=TextUsage(context.usage.limits)) for _ in requests]
        )
        chunks = [self.chunks(request, own) for request, own in zip(requests, contexts, strict=True)]
        self._require(requests[0])
        voices: dict[str, Any] = {}
        for request, own in zip(requests, chunks, strict=True):
            for chunk in own:
                if chunk.named and chunk.named not in voices:
                    voices[chunk.named] = self.named_voice(chunk.named, request, context)
        voices[""] = self.voice_of(requests[0], context)
        for chunk in (every := [chunk for own in chunks for chunk in own]):
            chunk.voice = voices[chunk.named]
        return chunks, self.facts(requests[0], voices[""]), self.render(every, requests[0], context)

    def named_voice(self, name: str, request: SpeechRequest, context: SpeechContext) -> Any:
        """What ``render`` takes for a voice that a text or its cast names. Raises UserError, with its place."""
        cast_voices = request.roles.voices if request.roles else {}
        voice = cast_voices.get(name, name)
        try:
            check_option(self.model, "voice")
            if context.named_voice is None and name not in cast_voices and self.model.has_latents:
                check_named_voice(name, self.voices)
            voice_or_name = context.named_voice(voice) if context.named_voice else voice
            return self.voice_of(replace(request, voice=voice_or_name), context)
        except UserError as error:
            cast = "" if voice == name else f" of {name} in the cast"
            line = request.text.count("\n", 0, max(0, request.text.find(name))) + 1
            kind = NotFoundError if isinstance(error, NotFoundError) else UserError
            raise kind(f"line {line}, voice {voice!r}{cast}: {error}") from error

    def _scripts(self, request: SpeechRequest) -> list[str]:
        """Notes on letters for which the model has no sounds, on another language, and on signs that nothing is spoken
        for, logged once before it speaks.
        """
        text = request.lexicon.respelt(request.text) if request.lexicon else request.text
        names, language = foreign_scripts(text), foreign_language(text)
        signs = unread_signs(text)
        markup: list[str] = []
        if request.ssml or (request.ssml is None and is_ssml(request.text)):
            from ane.text.ssml import ssml_notes

            markup = ssml_notes(request.text)
        if self.normaliser(request.settings) in ANY_SCRIPT:
            names, language, signs = [], "", []
        how = UNREADABLE[getattr(request.lexicon, "unreadable", "nearest")]
        notes = (
            [f"{' and '.join(names)} letters are {how}"]
            if names
            else [f"the text looks like {language}, and is read as English"]
            if language
            else []
        )
        notes += markup
        if signs:
            notes.append(f"nothing is spoken for {' '.join(signs[:MOST_SIGNS])}: write in words what they mean")
        for note in notes:
            if note not in self.warned:
                self.warned.add(note)
                LOGGER.warning("%s", note)
        return notes

    def _require(self, request: SpeechRequest) -> None:
        """Raise UserError when the model lacks a network that speaking with these settings needs."""
        for network in self.networks(request.settings):
            self.model.require(network)


def up_to_final(rendered: Iterator[RenderedChunk]) -> Iterator[RenderedChunk]:
    """The chunks up to the last of a text. The iterator stays open."""
    for chunk in rendered:
        yield chunk
        if chunk.chunk.final:
            return
