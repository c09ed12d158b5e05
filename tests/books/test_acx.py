"""Test files for ACX independently of our code: libsndfile decodes them, and RMS and dB follow their definitions."""

import re

import av
import numpy as np
import pytest
import soundfile

from ane.books import acx
from ane.books.document import Document
from ane.system.errors import UserError
from tests.books.stand_in import book, run_job, write
from tests.books.test_output import PeakySpeaker


def decibels(power: float) -> float:
    return 10 * np.log10(power)


def test_each_file_is_within_the_limits_of_acx_and_the_report_says_so(tmp_path):
    document = acx.with_credits(book(6), acx.opening_credits("The Book", "A. Writer", "Heart"), "The end.")
    titles = ["Opening Credits", "Chapter 1", "Chapter 2", "Closing Credits"]
    assert [chapter.title for chapter in document.chapters] == titles
    run_job(tmp_path / "job", document, PeakySpeaker())
    written = write(tmp_path / "job", tmp_path / "book.mp3", acx=True, per_chapter=True, srt=True, playlist=True)
    files = sorted(tmp_path.glob("*.mp3"))
    assert [file.name for file in files] == [*written.measures]
    for file in files:
        audio, rate = soundfile.read(file)
        with av.open(str(file)) as opened:
            assert (rate, opened.streams.audio[0].bit_rate, audio.ndim) == (44_100, 192_000, 1)
        rms, peak = decibels(np.mean(audio**2)), 2 * decibels(np.abs(audio).max())
        floor = min(decibels(np.mean(part**2)) for part in np.array_split(audio, 2 * len(audio) // rate))
        assert -23 <= rms <= -18
        assert peak <= -3
        assert -90 < floor <= -60, "a quiet room, and not digital silence"
        heard = np.flatnonzero(np.abs(audio) > 0.02) / rate
        assert 0.5 <= heard[0] <= 1
        assert 1 <= len(audio) / rate - heard[-1] <= 5
        assert re.search(r"00:00:00,750 --> ", file.with_suffix(".srt").read_text())
        assert written.measures[file.name][:3] == pytest.approx([len(audio) / rate, rms, peak], abs=0.1)
        assert acx.faults(written.measures[file.name]) == []
    assert acx.faults([7300, -17.9, -2.0, -50]) == [
        "the length is 7300.0 s, but ACX requires at most 7200",
        "the RMS is -17.9 dB, but ACX requires at most -18",
        "the peak is -2.0 dB, but ACX requires at most -3",
        "the noise floor is -50.0 dB, but ACX requires at most -60",
    ]


@pytest.mark.parametrize(
    ("facts", "opening", "closing"),
    [
        (
            ("The Pond", "A. Writer", "Heart"),
            "The Pond. Written by A. Writer. Narrated by Heart.",
            "You have been listening to The Pond, written by A. Writer, narrated by Heart. The end.",
        ),
        (("The Pond", "", ""), "The Pond.", "You have been listening to The Pond. The end."),
        (("", "", ""), "This audiobook.", "You have been listening to an audiobook. The end."),
    ],
)
def test_credits_say_what_is_known(facts, opening, closing):
    assert (acx.opening_credits(*facts), acx.closing_credits(*facts)) == (opening, closing)
    assert acx.with_credits(Document([]), "", " ").chapters == []


@pytest.mark.parametrize(
    ("name", "options"),
    [("book.m4b", {"per_chapter": True}), ("book.mp3", {}), ("book.mp3", {"per_chapter": True, "loudness": -19.0})],
)
def test_another_form_than_acx_takes_is_refused(tmp_path, name, options):
    with pytest.raises(
        UserError, match=r"one file per chapter, and no loudness|loudness has no effect with acx, which sets the level"
    ):
        write(tmp_path / "job", tmp_path / name, acx=True, **options)
