"""Speak a text while it is still arriving, clause by clause."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.stream import SoundStream, Stream, silent_blocks
from ane.speech.words import SpokenWord
from ane.system.errors import NoEffectError, UserError, check_type
from ane.system.timeline import Timeline, closing_source
from ane.text import Lexicon, NothingToSayError, is_ssml, nothing_to_say_error
from ane.text.clauses import MAX_HELD, ClauseReader
from ane.text.markdown import MarkdownFeed
from ane.text.passages import last_voice, read_pauses, without_words

COUNTED = ("codes", "frames", "tokens")  # facts that are the sum over all streams


class IncrementalStream(SoundStream):
    """An iterator over the sound of a text that is still arriving. It yields pieces, (n samples,) float32 within ±1.

    The iterator takes text only while you wait for a piece. It speaks the first clause as soon as the clause is
    complete. After that, it speaks together all complete clauses that have arrived. ``chunks``, ``words``, ``notes``,
    ``facts``, ``seconds``, ``seconds_by_phase`` and ``elapsed`` have the same meaning as in ``Stream``, but cover only
    the text spoken so far.

    Raises:
        UserError: When you ask for a piece: ``Speaker.stream`` rejects the text that has arrived, or the whole text has
            nothing to say.
    """

    def __init__(
        self,
        texts: Iterable[str],
        stream: Callable[[str], Any],
        normalise: Callable[[str], str],
        lexicon: Lexicon | None,
        sample_rate: int,
        timeline: Timeline,
        markdown: bool | None = None,
    ):
        """Prepare to speak. Work begins when you ask for the first piece of sound.

        Args:
            texts: Pieces of the text.
            stream: Function that returns the ``Stream`` for a text.
            normalise: Function that spells out numbers and abbreviations in text to which the lexicon was applied.
            lexicon: Lexicon that respells words, or ``None``.
            sample_rate: Samples per second.
            timeline: Timeline of the work.
            markdown: Whether the text is Markdown, as in ``SpeechRequest``.
        """
        self.sample_rate, self.timeline = sample_rate, timeline
        reader = ClauseReader(lambda text: normalise(lexicon(text) if lexicon else text))
        self._stream = stream
        pieces = checked_texts(texts)
        self._streams: list[Any] = []  # one ``Stream`` for each text that was spoken together
        self._begins: list[float] = []  # second of the whole sound at which each stream begins
        self._sound = self._spoken(ready_texts(pieces if markdown is False else without_listings(pieces), reader))

    @property
    def chunks(self) -> list[str]:
        return [chunk for stream in self._streams for chunk in stream.chunks]

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for stream in self._streams for note in stream.notes))

    @property
    def facts(self) -> dict[str, Any]:
        last = self._streams[-1].facts if self._streams else {}
        return {
            name: sum(stream.facts[name] for stream in self._streams) if name in COUNTED else value
            for name, value in last.items()
        }

    @property
    def words(self) -> list[SpokenWord]:
        return [
            replace(word, start=word.start + begin, end=word.end + begin)
            for stream, begin in zip(self._streams, self._begins, strict=True)
            for word in stream.words
        ]

    def _spoken(self, texts: Iterator[str]) -> Generator[np.ndarray, None, None]:
        """Yield the sound of all texts.

        If a text has no word, hold it back until a word follows. If the text that is held back grows too long, keep
        only its pauses.
        """
        held, line = "", 1
        with closing_source(texts):
            for text in texts:
                text = held + text
                read_pauses(text, line)  # raises an error if the markup is wrong, with the line in the whole text
                stream = self._begin(text)
                if stream is None:
                    held = text
                    if len(held) > MAX_HELD:
                        held, line = without_words(held), line + held.count("\n")
                    continue
                held, line = "", line + text.count("\n")
                with closing_source(stream):
                    yield from stream
        if not self._streams:
            raise nothing_to_say_error(held)
        if seconds := sum(passage.silence for passage in read_pauses(held)):
            yield from silent_blocks(round(seconds * self.sample_rate), self.sample_rate)

    def _begin(self, text: str) -> Any:
        """Start the stream of a text. Returns ``None`` if the text has nothing to say."""
        if not self._streams and is_ssml(text):
            raise UserError("text that arrives incrementally cannot be SSML: speak the whole document")
        began = self.timeline.text_ready
        try:
            stream = self._stream(text)
        except NothingToSayError:
            return None
        if self._streams:
            self.timeline.text_ready = began  # the timeline counts from the first text
        self._streams.append(stream)
        self._begins.append(self.seconds)
        return stream


def check_cast(request: SpeechRequest) -> None:
    """Raise InvalidValueError if a complete request has a cast that needs to see whole quotations."""
    if (cast := request.roles) and cast.attributed and cast.voices:
        name = request.voices_of_quotations
        message = (
            f"{name} cannot be used with text that is still arriving, because a quotation may not be complete yet: "
            "leave it out"
        )
        if name == "cast" and cast.narrator:  # the cast also has a voice for the narration
            raise UserError(message, name)
        raise NoEffectError(name, "on text that is still arriving", text=message)


def begin_stream(
    stream_of: Callable[[SpeechRequest, SpeechContext], Stream],
    request: SpeechRequest,
    context: SpeechContext,
    text: str,
) -> Stream:
    """Begin the stream of a text that continues earlier texts. ``context`` remembers their voice and limits."""
    usage_before = replace(context.usage)
    try:
        stream = stream_of(replace(request, text=text), context)
    except NothingToSayError:  # the incremental stream holds this text back, and passes it again with the next text
        context.usage = usage_before
        raise
    context.voice = last_voice(text, context.voice)
    return stream


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts. Raises InvalidValueError for a text that is not a string."""
    with closing_source(texts):
        for text in texts:
            check_type("texts", text, str, "pieces of text")
            yield text


def without_listings(texts: Iterable[str]) -> Iterator[str]:
    """Remove program listings from arriving Markdown. ``MarkdownFeed`` holds a table back until it is complete."""
    reader = MarkdownFeed()
    with closing_source(texts):
        for text in texts:
            if ready := reader.feed(text):
                yield ready
    if rest := reader.finish():
        yield rest


def ready_texts(texts: Iterable[str], reader: ClauseReader) -> Iterator[str]:
    """Yield the texts to speak: the first clause, then all new clauses whenever text arrives, then the rest."""
    first = True
    with closing_source(texts):
        for text in texts:
            pieces = reader.feed(text)
            if first and pieces:
                yield pieces.pop(0)
                first = False
            if pieces:
                yield "".join(pieces)
    if rest := "".join(reader.finish()):
        yield rest
