"""Test subtitles that are spoken at their times."""

import json
import time
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from rich.console import Console

from ane.books.assembly import MAX_CUE_SPEED, cue_speed
from ane.books.narration import BREATH
from ane.books.output import OutputOptions, write_book_files
from ane.books.plain_text import read_subtitles
from ane.books.reading import read_document
from ane.books.speakers import SpokenChunk
from ane.books.store import JobStore
from ane.commands.read_report import print_status
from ane.speech.words import SpokenWord
from tests.books.stand_in import RATE, StandInSpeaker, narrated

SRT, VTT = (Path(__file__).with_name(f"subtitles.{form}").read_text() for form in ("srt", "vtt"))
SECONDS = {"One": 1.0, "Two": 2.0, "Four": 4.0, "Late.": 0.5}


def test_times_have_hours():
    document = read_subtitles("1\n01:02:03,500 --> 10:00:00,040\nOne.\n", keep_timing=True)
    assert document.chapters[0].blocks[0].cue == (3723.5, 36000.04)


class TimingSpeaker(StandInSpeaker):
    """Speaks as long as the first word says, and times that word."""

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        seconds = SECONDS[text.split()[0]]
        audio = (0.3 * np.sin(2 * np.pi * 200 * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)
        words = text.split()
        times = np.linspace(0, seconds, len(words) + 1)
        return SpokenChunk(
            audio, [], [SpokenWord(word, *span) for word, *span in zip(words, times, times[1:], strict=False)]
        )


def written(folder, document, **options):
    with closing(JobStore(folder / "job")) as store:
        plan = narrated(store, TimingSpeaker(), document)
        store.set_fact("text", {"language": "", "blocks": [astuple(block) for block in plan.blocks]})
        return write_book_files(store, OutputOptions(folder / "talk.wav", times=True, word_times=True, **options))


def test_each_cue_begins_at_its_time_and_long_ones_are_faster(tmp_path):
    (tmp_path / "talk.srt").write_text(SRT)
    book = written(tmp_path, read_document(tmp_path / "talk.srt", keep_timing=True))
    chunks = json.loads((tmp_path / "talk.json").read_text())["chapters"][0]["chunks"]
    assert chunks[0]["text"] == "One second."
    shortened = 6.5 + 4 / MAX_CUE_SPEED
    assert [chunk["start"] for chunk in chunks] == pytest.approx([2, 5, 6.5, shortened], abs=1e-3)
    assert [chunk["end"] for chunk in chunks] == pytest.approx(
        [3, 6.5, shortened, shortened + 0.5 / MAX_CUE_SPEED], abs=1e-3
    )
    assert chunks[-1]["words"][-1]["end"] == pytest.approx(chunks[-1]["end"], abs=0.01)
    assert chunks[1]["words"][-1]["end"] == pytest.approx(6.5, abs=0.01)
    assert len(book.notes) == 1
    assert (
        "chunk 4, 'Late.', starts 1.7 s late: the subtitles before it are too long, even at 1.5 times" in book.notes[0]
    )

    console = Console(record=True)
    with closing(JobStore(tmp_path / "job")) as store:
        print_status(console, store)
    assert "4 of 4 chunks spoken, 10 s of audio" in console.export_text()

    audio, rate = soundfile.read(tmp_path / "talk.wav")
    assert len(audio) / rate == pytest.approx(chunks[-1]["end"], abs=1e-3)
    heard = np.array([np.abs(audio[at : at + rate // 100]).max() > 0.05 for at in range(0, len(audio), rate // 100)])
    assert not heard[:198].any()
    assert heard[202:298].all()
    assert not heard[302:498].any()
    assert heard[502:].all()


def test_silence_within_a_subtitle_keeps_its_length_and_speech_alone_is_faster():
    """Two chunks of a second with a second between them."""
    chunk = SimpleNamespace(chunk=SimpleNamespace(silence=1 + 2 * BREATH), samples=RATE, rate=RATE)
    assert [cue_speed([chunk] * 2, round(seconds * RATE)) for seconds in (3, 2.6, 1)] == [1, 1.25, MAX_CUE_SPEED]


def test_a_changed_time_writes_the_files_again_and_speaks_nothing(tmp_path):
    (tmp_path / "talk.srt").write_text(SRT)
    written(tmp_path, read_document(tmp_path / "talk.srt", keep_timing=True))
    (tmp_path / "talk.srt").write_text(SRT.replace("00:00:02,000", "00:00:01,000"))
    written(tmp_path, read_document(tmp_path / "talk.srt", keep_timing=True))
    assert json.loads((tmp_path / "talk.json").read_text())["chapters"][0]["chunks"][0]["start"] == 1


def test_webvtt_is_read_without_its_notes_styles_and_marks(tmp_path):
    (tmp_path / "talk.vtt").write_text(VTT)
    [chapter] = read_document(tmp_path / "talk.vtt", keep_timing=True).chapters
    assert [(block.text, block.cue) for block in chapter.blocks] == [("One & second.", (2, 4)), ("Two.", (5, 6))]
    assert [block.text for block in read_document(tmp_path / "talk.vtt").chapters[0].blocks] == ["One & second. Two."]


@pytest.mark.parametrize("keep_timing", [True, False])
def test_many_subtitles_are_read_soon(keep_timing):
    text = "\n\n".join(
        f"00:{n // 60 % 60:02}:{n % 60:02}.000 --> 00:{n // 60 % 60:02}:{n % 60:02}.900\nOne" for n in range(100_000)
    )
    began = time.process_time()
    read_subtitles(text, keep_timing)
    assert time.process_time() - began < 10
