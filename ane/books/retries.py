"""The second look at a job: every chunk is judged, and one that is suspect is spoken again with other seeds.

It begins when all chunks have been spoken, and compares with medians over their first sounds, so that what is kept does
not depend on the order of the work, on interruptions or on how many processes share it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ane.books.judging import BookNorms, ChunkProblem, ChunkSignals, problems_of, skipped_words
from ane.books.narration import POLL, leases_renewed, sound_of
from ane.books.plan import BookPlan, seed_of
from ane.books.recognisers import TextAligner, TranscribingRecogniser
from ane.books.speakers import BookSpeaker, SpokenChunk
from ane.books.store import SOUND_ONLY, JobStore, StoredChunk
from ane.speech.words import SpokenWord
from ane.system.checked import read_record
from ane.system.errors import UserError
from ane.text.passages import without_commands

CheckProgress = Callable[[int, int], None]  # chunks judged, of all


@dataclass(frozen=True)
class BookChecker:
    """How chunks are judged."""

    recogniser: TextAligner | TranscribingRecogniser | None = None  # None: by the sound and the codes alone
    retries: int = 2  # how many times a suspect chunk is spoken again at most; 0: it is only reported

    @property
    def name(self) -> str:
        return self.recogniser.name if self.recogniser else SOUND_ONLY

    def problems(
        self,
        text: str,
        audio: np.ndarray,
        rate: int,
        signals: ChunkSignals,
        norms: BookNorms,
        words: Iterable[SpokenWord] = (),
    ) -> list[ChunkProblem]:
        """What is wrong with a chunk's sound (S,) float32. ``words``: those that were timed."""
        found = problems_of(signals, norms) + skipped_words(words)
        if self.recogniser is not None and signals.sound.seconds:
            found += self.recogniser.problems(text, audio, rate, signals.sound.loudness)
        return found


def badness(problems: list[ChunkProblem]) -> float:
    return sum(problem.severity for problem in problems)


def check_book(
    store: JobStore,
    plan: BookPlan,
    speaker: BookSpeaker,
    checker: BookChecker,
    progress: CheckProgress = lambda done, total: None,
) -> int:
    """Judge every chunk of a job that was not judged in this way; returns the number of chunks that were replaced.

    Raises:
        UserError: as ``ane.books.narration.narrate``.
    """
    norms = norms_of(store)
    replaced = 0
    with leases_renewed(store):
        for claimed in chunks_to_check(store, plan, checker, progress):
            if claimed is not None:
                sound = store.spoken(claimed.chunk.key)
                best = judged(claimed, sound, speaker, checker, norms, len(plan.chunks))
                replaced += store.save_check(claimed, checker.name, best, speaker.sample_rate) and not best.stored
    return replaced


def norms_of(store: JobStore) -> BookNorms:
    """What is usual in a job whose chunks have all been spoken."""
    return BookNorms.of(read_record(ChunkSignals, content, str(store.path)) for content in store.signals())


def chunks_to_check(
    store: JobStore, plan: BookPlan, checker: BookChecker, progress: CheckProgress
) -> Iterator[StoredChunk | None]:
    """The chunks that were not judged, leased to this process; None while others judge the last of them.

    Raises:
        UserError: another process forgot chunks that had been spoken, or changed the plan.
    """
    while True:
        claimed = store.claim_check(plan.digest, checker.name)
        done = store.checked(checker.name)
        progress(done, len(plan.chunks))
        if claimed is None and done == len(plan.chunks):
            return
        if claimed is None:
            spoken, _, _ = store.progress()
            if spoken < len(plan.chunks):
                raise UserError(
                    "another process forgot the sound of chunks, to speak them again, while they were "
                    "checked: run the command again; what was spoken is kept"
                )
            time.sleep(POLL)
        yield claimed


def judged(
    claimed: StoredChunk, sound: SpokenChunk, speaker: BookSpeaker, checker: BookChecker, norms: BookNorms, count: int
) -> SpokenChunk:
    """Return the chunk's sound or, if it is suspect, the best of this one and others with other seeds, with its
    problems. ``count`` is the number of chunks.
    """
    chunk, rate, text = claimed.chunk, speaker.sample_rate, spoken_text(claimed.chunk.text, speaker)

    def problems(of: SpokenChunk) -> list[ChunkProblem]:
        return checker.problems(
            text, of.audio, rate, ChunkSignals.of(text, of, rate), norms, of.words if speaker.aligned else ()
        )

    best, found = sound, problems(sound)
    for attempt in range(1, checker.retries + 1 if speaker.seeded else 1):
        if not found:
            break
        other = sound_of(speaker, claimed, count, seed_of(f"{chunk.key} again {attempt}", claimed.take))
        if badness(others := problems(other)) < badness(found):
            best, found = other, others
    best.problems = [problem.what for problem in found]
    return best


def spoken_text(text: str, speaker: BookSpeaker) -> str:
    """Return the words of a chunk's text: respelled, unless in phonemes, and without commands."""
    respelled = speaker.respell(text)
    return without_commands(text if "{" in respelled else respelled)
