"""A model that speaks: text to chunks to sound, the same way for every kind of model, at once or as a stream."""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ane.bundles import Model
from ane.speech.fed_stream import FedStream
from ane.speech.lanes import Lanes
from ane.speech.request import Chunk, Piece, Progress, Run, SpeechRequest, Spending, checked_voice, report_nothing
from ane.speech.settings import SpeechSettings, check_option, chosen_settings
from ane.speech.stream import Speech, Stream, delivered
from ane.system.errors import UserError
from ane.system.timeline import Timeline, closing_source
from ane.text import ANY_SCRIPT, Lexicon, NothingToSayError
from ane.text.cast import Cast, cast_of
from ane.text.other_languages import foreign_language
from ane.text.passages import last_voice
from ane.text.unicode_to_ascii import UNREADABLE, foreign_scripts
from ane.voices import check_named_voice, voice_names

LOGGER = logging.getLogger("ane.speech")


class Speaker(ABC):
    """A model on a backend. ``speak``, ``speak_all``, ``stream`` and ``feed`` synthesise speech; their arguments are
    those of ``request``, and ``progress`` and ``timeline`` of ``Run``.

    A kind of model defines ``settings``, ``networks``, ``chunks`` and ``render``. Coroutines, also of several event
    loops, may share a speaker: ``speak_async`` and ``stream_async`` work on one piece at a time, whoever waits for it.
    """

    settings: type[SpeechSettings]
    sample_rate: int

    def __init__(self, model: Model, backend: Any):
        self.model, self.backend = model, backend
        self._lock = threading.Lock()
        self.warned: set[str] = set()       # notes that were logged

    def __repr__(self) -> str:
        voice = f", voice {self.model.default_voice}" if self.model.default_voice else ""
        return f"<{type(self).__name__}: model {self.model.name}{voice}, backend {self.backend.name}>"

    # Of a kind of model

    def networks(self, settings: Any) -> list[str]:
        """Names of the networks that speaking with these settings needs."""
        return sorted(self.model.networks)

    @abstractmethod
    def chunks(self, request: SpeechRequest, run: Run) -> Sequence[Chunk]:
        """The chunks of the request's text, at least one. Raises UserError when nothing can be spoken."""

    @abstractmethod
    def render(self, chunks: Sequence[Any], request: SpeechRequest, run: Run) -> Iterator[Piece | Lanes]:
        """The sound of chunks, in order, before their delivery, and lanes that must take a step before more can come.

        Closing the iterator releases the networks.
        """

    def completed(self, request: SpeechRequest) -> SpeechRequest:
        """The request with values for what it leaves open. Raises UserError for what this model cannot do.

        Where the seed and the speed are settings, because the network itself speaks faster, they are moved there.
        """
        own = {field.name for field in fields(request.settings)} & {"seed", "speed"}
        given = {name: value for name in own if (value := getattr(request, name)) is not None}
        return replace(request, settings=replace(request.settings, **given))

    def with_voice(self, request: SpeechRequest, run: Run) -> SpeechRequest:
        """The request with what ``render`` takes for its voice. Raises UserError for a voice that is unsuitable."""
        return request

    def facts(self, request: SpeechRequest) -> dict[str, Any]:
        """What results state of a request, and 0 for what is counted."""
        return {}

    def normaliser(self, settings: Any) -> Callable[[str], str]:
        """How words of a text that arrives incrementally are read, after the lexicon."""
        return str

    def shared_lanes(self, lanes: int) -> Lanes | None:
        """Lanes that streams may share, as ``Run.lanes``; None: this kind of model needs none."""
        return None

    # Once for all

    @property
    def voices(self) -> list[str]:
        """Names of the voices that ``speak`` takes; none of a model that has one voice."""
        return voice_names(self.model)

    def request(self, text: str, voice: Any = None, preset: str | None = None, seed: int | None = None,
                settings: Any = None, speed: float | None = None, lexicon: Lexicon | None = None,
                ssml: bool | None = None, word_times: bool = False,
                cast: Cast | Path | str | Mapping[str, Any] | None = None,
                quote_voice: str | None = None) -> SpeechRequest:
        """What these arguments ask for.

        Args:
            text: may have pauses, [pause:1.5s], or be SSML.
            voice: a name, a path (also a ``Path``) or a mix as on the command line, or what ``prepare`` returns; None:
                the default.
            preset: a name of the model's presets, combined with its own settings; None: its default. It and
                ``settings`` exclude each other.
            seed: at least 0; None: a random one, which is in the result.
            settings: of the speaker's class ``settings``; None: those of the preset.
            speed: more than 1 is faster.
            lexicon: respells words, or letters of other scripts (``ane.text.read_lexicon``).
            ssml: whether ``text`` is SSML; None: if it begins with "<speak".
            word_times: whether to state when each word is heard, where that takes slightly longer.
            cast: who speaks quotations, and what [voice:NAME] in the text means: a ``Cast``, its fields, or a TOML
                file.
            quote_voice: the voice of quotations whose speaker is not known, or not in the cast.

        Raises:
            UserError: nothing to say, markup that asks for what cannot be done, a text too long for one pass with
                splitting off, a speed out of range, an unknown or unsuitable voice, an argument without effect on this
                kind of model, a network that the model lacks, out of memory.
        """
        settings, voice = chosen_settings(self.settings, self.model, preset, settings), checked_voice(voice)
        for name, value in (("voice", voice), ("seed", seed), ("cast", cast), ("quote_voice", quote_voice)):
            if value is not None:
                check_option(self.model, name)
        known = cast_of(cast, quote_voice)
        voice = known.narrator if known and known.narrator and voice is None else voice
        return self.completed(SpeechRequest(text, voice, seed, settings, speed, lexicon,
                                            None if ssml is None else bool(ssml), bool(word_times), known))

    def speak(self, text: str, voice: Any = None, preset: str | None = None, **arguments: Any) -> Speech:
        """Speak ``text``. The other arguments and the errors are those of ``request``, and of ``Run``:

        Args:
            progress: called with (phase, done, total, note) during the work.
            timeline: records when each phase runs (None: a new one).
        """
        [speech] = self.speak_all([text], voice, preset, **arguments)
        return speech

    def speak_all(self, texts: Sequence[str], voice: Any = None, preset: str | None = None,
                  **arguments: Any) -> Iterator[Speech]:
        """Speak several texts, each as ``speak`` does with the same seed; they share lanes and passes.

        Work begins when the first result is requested. Results are yielded in order, each as soon as it is ready.
        """
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise UserError(f"texts must be a list of texts, got {texts!r}: `speak` takes one text", "texts")
        request, run = self._asked("", voice, preset, whole=True, **arguments)
        requests = [replace(request, text=text) for text in texts]
        chunks, facts, pieces = self._begin(requests, run)
        notes = [self._scripts(each) for each in requests]
        with closing_source(pieces):
            began = run.timeline.text_ready
            for own, noted in zip(chunks, notes, strict=True):
                stream = Stream(up_to_final(pieces), own, facts, self.sample_rate, run, noted)
                stream.began = began
                yield stream.collect()
                began = run.timeline.now()

    def stream(self, text: str, voice: Any = None, preset: str | None = None, **arguments: Any) -> Stream:
        """Speak ``text`` and return its sound incrementally. Arguments and errors: ``speak``; ``best`` must be 1.

        Without diffusion the pieces join to what ``speak`` returns, up to rounding. With it, a long chunk is diffused
        in windows (``ane.models.tortoise.diffusion``), so its sound differs slightly.
        """
        return self.stream_of(*self._asked(text, voice, preset, **arguments))

    def speak_in_chunks(self, text: str, voice: Any = None, preset: str | None = None, **arguments: Any) -> Stream:
        """``speak``, but the sound is returned chunk by chunk, so that a long text takes no more memory than a short
        one. The pieces join to exactly what ``speak`` returns. Arguments and errors: ``stream``.
        """
        return self.stream_of(*self._asked(text, voice, preset, whole=True, **arguments))

    def stream_of(self, request: SpeechRequest, run: Run) -> Stream:
        """The stream of a request that ``request`` returned."""
        if (best := getattr(request.settings, "best", 1)) > 1:
            raise UserError(f"a stream returns the best candidate only: best must be 1, got {best}")
        [chunks], facts, pieces = self._begin([request], run)
        return Stream(pieces, chunks, facts, self.sample_rate, run, self._scripts(request))

    def feed(self, texts: Iterable[str], voice: Any = None, preset: str | None = None,
             **arguments: Any) -> FedStream:
        """Speak a text that arrives incrementally, such as a language model's answer, while it arrives.

        The words are those of the whole text. Its pieces are spoken with the same seed each.

        Args:
            texts: pieces of the text in order, divided anywhere. The other arguments and errors: ``speak``.
        """
        return self.feed_of(texts, *self._asked("", voice, preset, ssml=False, **arguments))

    def feed_of(self, texts: Iterable[str | None], request: SpeechRequest, run: Run) -> FedStream:
        """``feed`` of a request without a text; a None among the texts stands where there is no text yet."""
        self._require(request)
        if request.cast and request.cast.attributed and request.cast.voices:
            raise UserError("cast has no effect on text that arrives incrementally, whose quotations are not complete: "
                            "leave it out", "cast")
        request = self.with_voice(request, run)
        voice = ""          # of the last text

        def begin(text: str) -> Stream:
            nonlocal voice
            spent = replace(run.spending)
            try:
                stream = self.stream_of(replace(request, text=f"[voice:{voice}]{text}" if voice else text), run)
                voice = last_voice(text, voice)
                return stream
            except NothingToSayError:       # it is held back, and comes again with what follows
                run.spending = spent
                raise

        return FedStream(texts, begin, self.normaliser(request.settings), request.lexicon, self.sample_rate,
                         run.timeline)

    def prepare(self, voice: Any = None, settings: Any = None) -> Any:
        """Load the networks that the settings need and the voice, so that the first text is spoken sooner.

        Returns what requests take for the voice. Errors: ``speak``.
        """
        request = self.request("1", voice, settings=settings)
        self._require(request)
        self.backend.load(*self.networks(request.settings))
        self.chunks(request, Run())         # the library that spells numbers takes a second to load
        return self.with_voice(request, Run()).voice

    # For programs on asyncio

    async def speak_async(self, text: str, **arguments: Any) -> Any:
        """``speak`` with these arguments, in a thread, which ends its work even if the coroutine is cancelled."""
        return await self._work(partial(self.speak, text, **arguments))

    async def stream_async(self, text: str, **arguments: Any) -> AsyncIterator[np.ndarray]:
        """The pieces of ``stream`` with these arguments, each made in a thread when it is awaited.

        Work stops when the iterator is closed: use ``contextlib.aclosing`` to leave the loop early.
        """
        stream = await self._work(partial(self.stream, text, **arguments))
        try:
            while (piece := await self._work(partial(next, stream, None))) is not None:
                yield piece
        finally:
            await self._work(stream.close)

    async def _work(self, call: Callable[[], Any]) -> Any:
        def locked() -> Any:
            with self._lock:
                return call()

        return await asyncio.to_thread(locked)

    # Within

    def _asked(self, text: str, voice: Any, preset: str | None, whole: bool = False,
               progress: Progress = report_nothing, timeline: Timeline | None = None,
               **arguments: Any) -> tuple[SpeechRequest, Run]:
        """The request of these arguments of ``speak``, and its run."""
        return self.request(text, voice, preset, **arguments), Run(progress, timeline or Timeline(), whole=whole)

    def _begin(self, requests: Sequence[SpeechRequest],
               run: Run) -> tuple[list[list[Chunk]], dict[str, Any], Generator[Piece | Lanes, None, None]]:
        """The chunks of each of some requests that differ in their texts only, and the facts and the sound of all.

        Of the chunks of a text, only the last is marked as final.
        """
        run.timeline.mark_text_ready()
        # texts that are spoken together are requests of their own; a text that arrives in pieces is one
        runs = [run] if len(requests) == 1 else [replace(run, spending=Spending(run.spending.budget)) for _ in requests]
        chunks = []
        for request, own in zip(requests, runs, strict=True):
            *others, last = self.chunks(request, own)
            chunks.append([*(replace(chunk, final=False) for chunk in others), last])
        self._require(requests[0])
        named = {chunk.delivery.voice: request for request, own in zip(requests, chunks, strict=True) for chunk in own
                 if chunk.delivery.voice}
        voices = {name: self.named_voice(name, request, run) for name, request in named.items()}
        request = self.with_voice(requests[0], run)
        sound = self.in_voices([chunk for own in chunks for chunk in own], request, voices, run)
        return chunks, self.facts(request), delivered(sound, self.sample_rate)

    def named_voice(self, name: str, request: SpeechRequest, run: Run) -> Any:
        """What ``render`` takes for a voice that a text or its cast names. Raises UserError, with its place."""
        cast_voices = request.cast.voices if request.cast else {}
        voice = cast_voices.get(name, name)
        try:
            check_option(self.model, "voice")
            if run.named_voice is None and name not in cast_voices and self.model.has_latents:
                check_named_voice(name, self.voices)
            voice_or_name = run.named_voice(voice) if run.named_voice else voice
            return self.with_voice(replace(request, voice=voice_or_name), run).voice
        except UserError as error:
            cast = "" if voice == name else f" of {name} in the cast"
            line = request.text.count("\n", 0, max(0, request.text.find(name))) + 1
            raise UserError(f"line {line}, voice {voice!r}{cast}: {error}") from error

    def in_voices(self, chunks: Sequence[Chunk], request: SpeechRequest, voices: Mapping[str, Any],
                  run: Run) -> Iterator[Piece | Lanes]:
        """``render`` of chunks, each in its voice: one run of chunks after another, with the networks loaded."""
        if not voices:
            yield from self.render(chunks, request, run)
            return
        keep = self.backend.keep
        self.backend.keep = True
        try:
            for name, own in groupby(chunks, lambda chunk: chunk.delivery.voice):
                yield from self.render(list(own), replace(request, voice=voices.get(name, request.voice)), run)
        finally:
            self.backend.keep = keep
            self.backend.release()

    def _scripts(self, request: SpeechRequest) -> list[str]:
        """A note on letters for which the model has no sounds, or on another language, logged once before it speaks."""
        text = request.lexicon.respelt(request.text) if request.lexicon else request.text
        names, language = foreign_scripts(text), foreign_language(text)
        if not (names or language) or self.normaliser(request.settings) in ANY_SCRIPT:
            return []
        how = UNREADABLE[getattr(request.lexicon, "unreadable", "nearest")]
        note = (f"{' and '.join(names)} letters are {how}" if names
                else f"the text looks like {language}, and is read as English")
        if note not in self.warned:
            self.warned.add(note)
            LOGGER.warning("%s", note)
        return [note]

    def _require(self, request: SpeechRequest) -> None:
        """Raise UserError when the model lacks a network that speaking with these settings needs."""
        for network in self.networks(request.settings):
            self.model.require(network)


def up_to_final(pieces: Iterator[Piece | Lanes]) -> Generator[Piece | Lanes, None, None]:
    """The pieces up to the last of a text. The iterator stays open."""
    for piece in pieces:
        yield piece
        if isinstance(piece, Piece) and piece.last and piece.chunk.final:
            return
