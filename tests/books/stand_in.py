"""Stand in for a synthesizer: make a tone in microseconds, whose pitch and length depend on the text and the seed."""

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from ane.books.document import BookChapter, Document
from ane.books.narration import narrate
from ane.books.output import OutputOptions, WrittenBook, write_book_files
from ane.books.plan import BookPlan, Silences, SpeechIdentity, plan_book
from ane.books.speakers import SpokenChunk
from ane.books.store import JobStore
from ane.text.blocks import HEADING, PARAGRAPH, TextBlock

RATE = 24000


class StandInSpeaker:
    """Keeps the texts that it spoke in ``spoken``, and their ``voices``. ``before`` is called with each text first."""

    sample_rate, lengths, seeded, aligned = RATE, (60, 90), True, False

    def __init__(self, voice: str = "voice", before: Callable[[str], None] = lambda text: None, **settings: float):
        self.model, self.voice, self.settings, self.before = "model", voice, settings, before
        self.spoken: list[str] = []
        self.voices: list[str] = []

    def respell(self, text: str) -> str:
        return text

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        self.before(text)
        self.spoken.append(text)
        self.voices.append(voice)
        digest = hashlib.sha256(f"{text}{seed}".encode()).digest()
        time = np.arange(1200 + 8 * digest[0]) / RATE
        return SpokenChunk((0.3 * np.sin(2 * np.pi * (200 + digest[1]) * time)).astype(np.float32))


def book(paragraphs: int = 8, chapters: int = 2, changed: int | None = None) -> Document:
    """Two sentences a paragraph, each a chunk; some sentences occur several times."""
    made = []
    for chapter in range(chapters):
        blocks = [TextBlock(HEADING, f"Chapter {chapter + 1}", level=1)]
        for number in range(chapter, paragraphs, chapters):
            word = "changed" if number == changed else "same"
            blocks.append(
                TextBlock(
                    PARAGRAPH,
                    f"This is the {word} paragraph with the number {number} and some more. "
                    "And this sentence is in each of the paragraphs of the book.",
                )
            )
        made.append(BookChapter(f"Chapter {chapter + 1}", blocks))
    return Document(made, "The Book", "A. Writer", "en")


def plan_for(speaker: StandInSpeaker, document: Document, seed: int = 7) -> BookPlan:
    identity = SpeechIdentity(speaker.model, speaker.voice, speaker.settings, seed)
    return plan_book(document, identity, Silences(), speaker.lengths)


def narrated(store: JobStore, speaker: StandInSpeaker, document: Document) -> BookPlan:
    """Speak a document, or what is left of it."""
    plan = plan_for(speaker, document, store.seed(7))
    store.adopt(plan)
    narrate(store, plan, speaker, lambda done, total, left: None)
    return plan


def run_job(folder: Path, document: Document, speaker: StandInSpeaker | None = None, redo: tuple[int, ...] = ()) -> int:
    """Speak a job, or what is left of it; returns the number of chunks that were spoken."""
    speaker = speaker or StandInSpeaker()
    with closing(JobStore(folder)) as store:
        plan = plan_for(speaker, document, store.seed(7))
        store.adopt(plan)
        store.redo(redo)
        return narrate(store, plan, speaker, lambda done, total, left: None)


def write(job: Path, path: Path, **options) -> WrittenBook:
    """Write the files of a finished job."""
    with closing(JobStore(job)) as store:
        return write_book_files(store, OutputOptions(path, **options))


def sounds(folder: Path) -> list[bytes]:
    """The samples of every chunk, in order."""
    with closing(JobStore(folder)) as store:
        return [store.sound(chunk.chunk.key).tobytes() for chunk in store.chunks()]
