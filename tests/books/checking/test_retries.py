"""Test which sound of a chunk a check keeps, and which problems it reports."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ane.books.judging import skipped_words
from ane.books.plan import seed_of
from ane.books.retries import BookChecker, check_book, spoken_text
from ane.books.speakers import SpokenChunk
from ane.books.store import JobStore
from ane.speech.words import SpokenWord
from ane.system.errors import UserError
from tests.books.stand_in import RATE, StandInSpeaker, book, narrated, sounds

SPOILT = "number 2"


class SpoilingSpeaker(StandInSpeaker):
    """Speaks like the stand-in, but for a click in chunks with ``SPOILT`` the first ``spoilt`` times."""

    def __init__(self, spoilt: int):
        super().__init__()
        self.left = spoilt

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        audio = super().speak(text, seed).audio
        audio[:240] *= np.linspace(0, 1, 240, dtype=np.float32)
        audio[-240:] *= np.linspace(1, 0, 240, dtype=np.float32)
        quiet = np.zeros(RATE // 10, np.float32)
        if SPOILT in text and self.left:
            self.left -= 1
            audio[len(audio) // 2] = 0.95
        return SpokenChunk(np.concatenate((quiet, audio, quiet)))


def checked_job(folder: Path, speaker: SpoilingSpeaker, **options: int) -> tuple[int, list[list[str]]]:
    """Speak and check a job; returns the number of replaced chunks, and the problems of each."""
    with closing(JobStore(folder)) as store:
        replaced = check_book(store, narrated(store, speaker, book(6)), speaker, BookChecker(**options))
        return replaced, [chunk.problems for chunk in store.chunks()]


def test_a_suspect_chunk_is_spoken_again_with_another_seed_and_the_good_sound_is_kept(tmp_path):
    speaker = SpoilingSpeaker(spoilt=2)
    replaced, problems = checked_job(tmp_path, speaker)
    assert replaced == 1
    assert not any(problems)
    assert sum(SPOILT in text for text in speaker.spoken) == 3
    assert not any(np.abs(np.frombuffer(sound, np.float32)).max() > 0.9 for sound in sounds(tmp_path))
    assert checked_job(tmp_path, SpoilingSpeaker(spoilt=9)) == (0, problems)  # a second check judges nothing again


def test_what_stays_doubtful_is_said_and_the_number_of_tries_is_bounded(tmp_path):
    speaker = SpoilingSpeaker(spoilt=100)
    replaced, problems = checked_job(tmp_path, speaker, retries=3)
    assert replaced == 0
    assert sum(map(bool, problems)) == 1
    assert ["it clicks"] in problems
    assert sum(SPOILT in text for text in speaker.spoken) == 4


def test_without_retries_a_suspect_is_only_reported_and_redo_forgets_what_was_found(tmp_path):
    speaker = SpoilingSpeaker(spoilt=1)
    replaced, problems = checked_job(tmp_path, speaker, retries=0)
    assert (replaced, sum(map(bool, problems)), sum(SPOILT in text for text in speaker.spoken)) == (0, 1, 1)
    with closing(JobStore(tmp_path)) as store:
        store.redo([next(chunk.chunk.number for chunk in store.chunks() if chunk.problems)])
    assert not any(checked_job(tmp_path, SpoilingSpeaker(spoilt=0))[1])


def test_a_check_does_not_wait_for_sounds_that_were_given_up(tmp_path):
    """Another process may have been told to speak a chunk again, and been interrupted."""
    speaker = SpoilingSpeaker(spoilt=0)
    with closing(JobStore(tmp_path)) as store:
        plan = narrated(store, speaker, book(3))
        store.redo([2])
        with pytest.raises(
            UserError, match="discarded chunks while this one was checking them, and will speak them again"
        ):
            check_book(store, plan, speaker, BookChecker())


def test_the_seeds_of_further_tries_are_those_of_the_chunk(tmp_path):
    """So that what is kept does not depend on interruptions or on other processes."""
    seeds = []

    class RecordingSpeaker(SpoilingSpeaker):
        def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
            if SPOILT in text:
                seeds.append(seed)
            return super().speak(text, seed)

    for folder in ("a", "b"):
        checked_job(tmp_path / folder, RecordingSpeaker(spoilt=2))
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3
    with closing(JobStore(tmp_path / "a")) as store:
        key = next(chunk.chunk.key for chunk in store.chunks() if SPOILT in chunk.chunk.text)
    assert seeds[0] == seed_of(key, 0)


def test_an_interrupted_check_ends_with_the_same_sounds(tmp_path):
    checked_job(tmp_path / "whole", SeedSpoilingSpeaker())
    with pytest.raises(UserError, match="the power failed"):
        checked_job(tmp_path / "interrupted", FailingSeedSpeaker())
    checked_job(tmp_path / "interrupted", SeedSpoilingSpeaker())
    assert sounds(tmp_path / "interrupted") == sounds(tmp_path / "whole")


class SeedSpoilingSpeaker(SpoilingSpeaker):
    """Clicks with two seeds of three, whatever was spoken before."""

    def __init__(self) -> None:
        super().__init__(spoilt=0)

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        self.left = seed % 3 > 0
        return super().speak(text, seed)


class FailingSeedSpeaker(SeedSpoilingSpeaker):
    """Fails while it speaks a chunk for another time."""

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        if text in self.spoken and SPOILT in text:
            raise UserError("the power failed")
        return super().speak(text, seed)


def test_a_chunk_is_judged_by_what_its_lexicon_reads_and_without_commands():
    speaker = StandInSpeaker()
    speaker.respell = lambda text: text.replace("Nguyen", "win").replace("GIF", "{JH IH1 F}")
    assert spoken_text("Nguyen [pause] came.", speaker) == "win came."
    assert spoken_text("A GIF.", speaker) == "A GIF."


def test_a_word_that_the_decoder_skipped_is_named():
    words = [
        SpokenWord("The", 0, 0.07),
        SpokenWord("cloud.", 0.07, 0.6),
        SpokenWord("How", 0.6, 0.61),
        SpokenWord("a", 0.61, 0.63),
        SpokenWord("trouble", 0.63, 0.64, estimated=True),
        SpokenWord("(note)", 0.64, 0.64),
    ]
    assert [problem.text for problem in skipped_words(words)] == ["'How' is skipped"]
