"""The lines of a text as a job: each is spoken by itself, several at a time, and what was spoken is kept."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ane.books.document import PARAGRAPH
from ane.books.narration import POLL, check_finite, leases_renewed
from ane.books.plan import BookPlan, PlannedChunk, SpeechIdentity, digest_of
from ane.books.store import ClaimedChunk, JobStore
from ane.speech.words import SpokenWord
from ane.system.errors import UserError
from ane.text import shorten

GROUP = 32      # lines that a process takes at a time, to speak them together

SpeakLines = Callable[[Sequence[str]], Iterator[Any]]       # lines → a speech each, in order


@dataclass(frozen=True)
class SpokenLine:
    """A line's sound (S,) float32, its words if they were timed, and its speech; None: it was spoken before."""

    audio: np.ndarray
    sample_rate: int
    words: Sequence[SpokenWord]
    speech: Any = None

    @property
    def seconds(self) -> float:
        return len(self.audio) / self.sample_rate


def plan_lines(lines: Sequence[str], identity: SpeechIdentity, respell: Callable[[str], str] = str) -> BookPlan:
    """One chunk for each line. Repeated lines have different keys, as repeated chunks of a book have."""
    base, seen, chunks = identity.digest, Counter[str](), list[PlannedChunk]()
    for number, line in enumerate(lines, 1):
        seen[line] += 1
        key = digest_of([base, "line", line, seen[line], respell(line)])
        chunks.append(PlannedChunk(number, key, line, 0, PARAGRAPH, "", 0.0))
    return BookPlan(tuple(chunks), ())


def spoken_lines(store: JobStore, plan: BookPlan, speak: SpeakLines) -> Iterator[SpokenLine]:
    """Speak the lines of a job that have no sound yet; yields every line in order, each as soon as it has one.

    The sound is the stored one, also of lines that were spoken now.

    Raises:
        UserError: a line cannot be spoken, another process changed the plan, or the store cannot be written.
    """
    store.adopt(plan)
    with leases_renewed(store):
        speaking, made = speeches(store, plan.digest, speak), dict[str, Any]()
        rates = stored_rates(store)
        for chunk in plan.chunks:
            while chunk.key not in rates:
                spoken = next(speaking)
                made.update(spoken)
                rates |= {key: speech.sample_rate for key, speech in spoken.items()} or stored_rates(store)
            yield SpokenLine(store.sound(chunk.key), rates[chunk.key], store.words(chunk.key),
                             made.pop(chunk.key, None))
    store.prune()


def stored_rates(store: JobStore) -> dict[str, int]:
    """The sample rate of every sound in the store, by key."""
    return {one.chunk.key: one.rate for one in store.chunks() if one.rate is not None}


def speeches(store: JobStore, plan: str, speak: SpeakLines) -> Iterator[dict[str, Any]]:
    """Speak and store the lines without a sound: {key: speech}; {} while other processes speak the last of them."""
    while True:
        claimed = list(islice(iter(lambda: store.claim(plan), None), GROUP))
        if not claimed:
            time.sleep(POLL)
            yield {}
            continue
        for one, speech in group_speeches(claimed, speak):
            store.save(one, speech.audio, speech.sample_rate, speech.elapsed, list(speech.notes), speech.words)
            yield {one.chunk.key: speech}


def group_speeches(group: Sequence[ClaimedChunk], speak: SpeakLines) -> Iterator[tuple[ClaimedChunk, Any]]:
    """Speak lines together. If one cannot be spoken, the others are spoken by themselves before its error is raised.

    A second one that cannot ends the work.

    Raises:
        UserError: a line cannot be spoken, or its sound holds NaN; with its text.
    """
    spoken = 0
    try:
        for speech in speak([one.chunk.text for one in group]):
            check_finite(speech.audio)
            yield group[spoken], speech
            spoken += 1
    except UserError as error:
        if len(group) == 1:
            raise UserError(f"{shorten(group[0].chunk.text)!r}: {error}") from error
        failure = None
        for one in group[spoken:]:
            try:
                yield from group_speeches([one], speak)
            except UserError as found:
                if failure is not None:
                    break
                failure = found
        if failure is not None:
            raise failure from error
