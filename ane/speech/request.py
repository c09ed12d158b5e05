"""A request for speech, what accompanies its work, and the sound that a model makes for it, piece by piece."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field

from ane.speech.lanes import Lanes
from ane.speech.words import SpokenWord
from ane.system.checked import checked
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from ane.text import Lexicon, is_ssml, read_passages
from ane.text.cast import Cast
from ane.text.passages import PLAIN, Delivery, Passage

FREE = 4096             # characters that a lexicon may add to any text


@checked
class Budget:
    """Limits of one request."""

    silence: float = Field(default=600.0, gt=0)         # seconds of all pauses of the text together
    expansion: float = Field(default=4.0, ge=1)         # of the text by its lexicon, relative to what was sent


@dataclass
class Spending:
    """What the texts of one request have cost so far."""

    budget: Budget = field(default_factory=Budget)
    silence: float = 0.0
    sent: int = 0
    spelled: int = 0

    def add(self, sent: str, passages: Iterable[Passage]) -> None:
        """Count a text and its passages. Raises UserError when they are beyond the budget."""
        self.sent += len(sent)
        for passage in passages:
            self.silence += passage.silence
            self.spelled += len(passage.text)
        if self.silence > self.budget.silence:
            raise UserError(f"the text asks for {self.silence:g} s of silence, at most {self.budget.silence:g} s can "
                            "be made at a time: shorten its pauses, or speak it in parts")
        if self.spelled > self.budget.expansion * self.sent + FREE:
            raise UserError(f"the lexicon makes {self.spelled} characters of {self.sent}, at most "
                            f"{self.budget.expansion:g} times as many can be spoken: shorten its respellings")


Progress = Callable[[str, int, int, str], None]        # (phase, done, total, note)
# phonemes in braces, of which one is a vowel with its stress
ARPABET = re.compile(r"\{\s*(?=[^{}]{0,200}[AEIOU][A-Z][012])[A-Z]{1,2}[012]?(?:\s+[A-Z]{1,2}[012]?){0,40}\s*\}")


def checked_voice(voice: Any) -> Any:
    """A voice as requests take it: the text of a path. Raises UserError for what no model takes."""
    from ane.voices import Voice  # imports torch, which flags do not need

    if isinstance(voice, Path):
        return os.path.abspath(voice)       # with a separator: it is no name
    if voice is not None and not isinstance(voice, str | Voice):
        raise UserError(f"voice must be a name, a path or what prepare returns, got {voice!r}", "voice")
    return voice


def report_nothing(phase: str, done: int, total: int, note: str) -> None:
    """The default progress callback."""


@checked
class SpeechRequest:
    """What is to be spoken, and how: the command line, the server, books and programs all make this object."""

    text: str
    voice: Any = None                   # a name, a path, a mix, or a prepared voice; None: the model's default
    seed: int | None = Field(default=None, ge=0)            # None: a random one, which the result states
    settings: Any = None                # of the model's kind; None: its defaults
    speed: float | None = None          # None: 1, or that of the settings
    lexicon: Lexicon | None = None      # respells words
    ssml: bool | None = None            # False: only pauses like [pause:1.5s]; None: if the text begins with "<speak"
    word_times: bool = False            # state when each word is heard, where that takes longer; others always do
    cast: Cast | None = None            # who speaks quotations and what the text marks


@dataclass
class Run:
    """What accompanies one request, and what its answer does not depend on."""

    progress: Progress = report_nothing
    timeline: Timeline = field(default_factory=Timeline)
    lanes: Lanes | None = None      # those that several requests share; None: a request has its own if it needs some
    priority: Callable[[], Any] = lambda: 0     # key for sorting requests that share lanes; the least is most urgent
    # whether chunks are worked on in groups, phase by phase, with networks released between; otherwise one after the
    # other, each as soon as it can be
    whole: bool = False
    spending: Spending = field(default_factory=Spending)
    # the voice that a name in a text means; None: the model's own of that name
    named_voice: Callable[[str], Any] | None = None

    def passages(self, request: SpeechRequest, speed: float = 1.0, arpabet: bool = False) -> list[Passage]:
        """``read_passages`` of the request's text. Raises UserError: as well when it costs more than it may, or has
        phonemes in braces without ``arpabet``."""
        text = request.text
        if request.cast and request.cast.attributed and request.cast.voices:
            if request.ssml or (request.ssml is None and is_ssml(text)):
                raise UserError("cast has no effect on quotations in SSML: use <voice>, or leave it out", "cast")
            text = request.cast.marked_text(text)
        passages = read_passages(text, request.lexicon, request.ssml, speed)
        found = None if arpabet else next((match for each in passages if (match := ARPABET.search(each.text))), None)
        if found:
            raise UserError(f"{found[0]}: this model takes no phonemes in braces, only FastSpeech does: write the word "
                            "or a respelling")
        self.spending.add(request.text, passages)
        return passages


@dataclass(frozen=True)
class Chunk:
    """A piece of text that is spoken in one pass; families add what their networks take."""

    text: str
    # its speed and volume, and the silence around it, apart from what the networks do themselves
    delivery: Delivery = field(default=PLAIN, kw_only=True)
    final: bool = field(default=True, kw_only=True)         # whether it is the last of its text

    def at_its_speed(self) -> Self:
        """The chunk when the network spoke it at its speed, so that its sound need not be stretched."""
        return replace(self, delivery=replace(self.delivery, speed=1.0))

    def with_pause(self, seconds: float) -> Self:
        """The chunk with a pause after it, unless it is the last of its text."""
        after = self.delivery.after + (0.0 if self.final else seconds)
        return replace(self, delivery=replace(self.delivery, after=after))


@dataclass(frozen=True)
class Piece:
    """Sound of one chunk. Pieces of chunks follow each other in order; each chunk has at least its last one.

    What is known of the chunk is stated by one of its pieces.
    """

    samples: np.ndarray                         # (n,) float32 within ±1, n ≥ 0
    chunk: Chunk
    last: bool = False                          # whether it is the last of its chunk
    words: Sequence[SpokenWord] = ()            # of the chunk, in seconds from the beginning of its sound
    counts: Mapping[str, int] = field(default_factory=dict)     # what was made for it: codes, frames or tokens
    notes: Sequence[str] = ()       # warnings; "{chunks}" in one stands for the numbers of all chunks that have it
    # other facts of the chunk, such as its mel, by the name under which ``Speech`` lists them
    details: Mapping[str, Any] = field(default_factory=dict)
    alternatives: Sequence[np.ndarray] = ()     # other candidates' sound of the chunk, where whole chunks are made
