"""Check the chunks of a spoken job: judge every chunk, and speak suspect chunks again with other seeds.

The check starts when all chunks have been spoken. It compares each chunk with the medians over all chunks' first
sounds. The result therefore does not depend on the order of work, on interruptions, or on the number of processes.
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

CheckProgress = Callable[[int, int], None]  # takes how many chunks were judged, and how many there are


@dataclass(frozen=True)
class BookChecker:
    """Judges whether chunks were spoken well.

    Attributes:
        recogniser: Recogniser that compares the words. ``None`` means that only the sound and the codes are judged.
        retries: Number of times that a suspect chunk may be spoken again. 0 means that the checker only reports the
            chunk.
    """

    recogniser: TextAligner | TranscribingRecogniser | None = None
    retries: int = 2

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
        """Return the problems of a chunk's sound (S,) float32. An empty list means that the sound is good.

        Args:
            norms: The medians of the book.
            words: The words of the chunk with their times, if the decoder's attention is exact enough to time them.
        """
        problems = problems_of(signals, norms) + skipped_words(words)
        if self.recogniser is not None and signals.sound.seconds:
            problems += self.recogniser.problems(text, audio, rate, signals.sound.loudness)
        return problems


def badness(problems: list[ChunkProblem]) -> float:
    return sum(problem.severity for problem in problems)


def check_book(
    store: JobStore,
    plan: BookPlan,
    speaker: BookSpeaker,
    checker: BookChecker,
    progress: CheckProgress = lambda done, total: None,
) -> int:
    """Judge every chunk that this checker has not judged yet, and speak suspect chunks again.

    Returns:
        Number of chunks that got another sound.

    Raises:
        UserError: A chunk cannot be spoken, another process changed the plan, or the store cannot be written.
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
    """Compute the medians of the chunks' signals, such as pace and loudness, to compare each chunk with them."""
    return BookNorms.of(read_record(ChunkSignals, content, str(store.path)) for content in store.signals())


def chunks_to_check(
    store: JobStore, plan: BookPlan, checker: BookChecker, progress: CheckProgress
) -> Iterator[StoredChunk | None]:
    """Reserve and yield the chunks that nobody has judged yet.

    Yield ``None`` while other processes judge the last chunks.

    Raises:
        UserError: Another process discarded spoken chunks, or changed the plan.
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
                    "another process discarded chunks while this one was checking them, and will speak them again: run "
                    "this command again (what was spoken is kept)"
                )
            time.sleep(POLL)
        yield claimed


def judged(
    claimed: StoredChunk, sound: SpokenChunk, speaker: BookSpeaker, checker: BookChecker, norms: BookNorms, count: int
) -> SpokenChunk:
    """Judge a chunk's sound. If it is suspect, speak the chunk with other seeds too. Return the best sound.

    Args:
        count: Number of chunks in the book, for messages.
    """
    chunk, rate, text = claimed.chunk, speaker.sample_rate, spoken_text(claimed.chunk.text, speaker)

    def problems(spoken: SpokenChunk) -> list[ChunkProblem]:
        signals = ChunkSignals.of(text, spoken, rate)
        return checker.problems(text, spoken.audio, rate, signals, norms, spoken.words if speaker.aligned else ())

    best, best_problems = sound, problems(sound)
    for attempt in range(1, checker.retries + 1 if speaker.seeded else 1):
        if not best_problems:
            break
        other = sound_of(speaker, claimed, count, seed_of(f"{chunk.key} again {attempt}", claimed.take))
        if badness(other_problems := problems(other)) < badness(best_problems):
            best, best_problems = other, other_problems
    best.problems = [problem.text for problem in best_problems]
    return best


def spoken_text(text: str, speaker: BookSpeaker) -> str:
    """Return the words that a listener should hear in a chunk: respelled by the lexicon, and without commands.

    If a respelling contains phonemes, the function respells no word.
    """
    respelled = speaker.respell(text)
    return without_commands(text if "{" in respelled else respelled)
