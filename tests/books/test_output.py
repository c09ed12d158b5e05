"""Test the files of a finished book: sound, chapters, tags, subtitles, times, loudness."""

import errno
import json
import os
import re
import sys
import zipfile
from contextlib import closing
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from PIL import Image

from ane.audio.media import FORMATS, INSTALL, CoverImage
from ane.audio.reader import read_recording
from ane.books import job_database, levels
from ane.books import job_leases as store_module
from ane.books.document import BookChapter, Document
from ane.books.job_leases import LEASE
from ane.books.narration import sound_of
from ane.books.output import OutputOptions, check_replaced
from ane.books.ownership import FileOwnership, published
from ane.books.plan import PlannedChunk
from ane.books.speakers import SpokenChunk
from ane.books.store import JobStore
from ane.speech.words import SpokenWord
from ane.system import sound_formats
from ane.system.errors import UserError
from ane.text.blocks import PARAGRAPH, TextBlock
from tests.audio.test_loudness import measured
from tests.books.stand_in import RATE, StandInSpeaker, book, run_job, write

# FFmpeg would open a port for this file
SDP = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
WITH_CHAPTERS, WITH_COVER = (".m4b", ".m4a", ".mp3", ".opus", ".aiff", ".aif"), (".m4b", ".m4a", ".mp3", ".flac")


TAGS = {
    "title": "The Book",
    "artist": "A. Writer",
    "composer": "N. Voice",
    "date": "1899",
    "publisher": "Press",
    "description": "Of a turtle.",
    "grouping": "Ponds #2",
    "language": "eng",
    "genre": "Audiobook",
}
WITHOUT = {
    ".ogg": TAGS,
    ".aac": TAGS,
    ".m4b": ("publisher",),
    ".m4a": ("publisher",),
    ".wav": ("description", "composer", "grouping", "publisher"),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "job"
    run_job(folder, book())
    return folder


def image(kind: str) -> CoverImage:
    content = BytesIO()
    Image.new("RGB", (40, 60), (200, 30, 30)).save(content, kind)
    return CoverImage(content.getvalue(), f"image/{kind.lower()}")


@pytest.mark.parametrize("suffix", sound_formats.FORMATS)
def test_every_format_holds_the_whole_sound_with_chapters_cover_and_tags(job, tmp_path, suffix):
    av = pytest.importorskip("av", reason=INSTALL)
    path = tmp_path / f"book{suffix}"
    about = {"date": "1899", "publisher": "Press", "description": "Of a turtle.", "series": "Ponds #2"}
    written = write(
        job,
        path,
        title="The Book",
        author="A. Writer",
        cover=image("JPEG"),
        narrator="N. Voice",
        language="en-GB",
        about=about,
    )
    with av.open(str(path)) as file:
        stream = file.streams.audio[0]
        seconds = sum(frame.samples for frame in file.decode(audio=0)) / stream.rate
        chapters = file.chapters()
        assert seconds == pytest.approx(written.seconds, abs=0.1)
        assert [chapter["metadata"]["title"] for chapter in chapters] == (
            ["Chapter 1", "Chapter 2"] if suffix in WITH_CHAPTERS else []
        )
        if chapters:
            assert float(chapters[1]["start"] * chapters[1]["time_base"]) == pytest.approx(written.seconds / 2, rel=0.2)
        assert suffix != ".mp3" or stream.bit_rate == FORMATS[suffix].bit_rate
        assert bool(file.streams.video) == (suffix in WITH_COVER)
        tags = {**stream.metadata, **file.metadata}
        tags = {name.lower().removeprefix("id3v2_priv."): value for name, value in tags.items()}
        tags.setdefault("description", tags.get("comment", ""))  # FFmpeg's name of this tag in FLAC and Opus
        wanted = {**TAGS, **dict.fromkeys(WITHOUT.get(suffix, ()), "")}
        assert {name: tags.get(name, "") for name in wanted} == wanted


def test_the_page_states_the_bit_rate_of_each_format():
    page = (Path(__file__).parents[2] / "docs" / "narrate.md").read_text(encoding="utf-8")
    stated = {
        suffix: 1000 * int(rate)
        for names, rate in re.findall(r"\| (`\..*?`) \| \w+, (\d+) kbit/s", page)
        for suffix in re.findall(r"`(.*?)`", names)
        if suffix != ".epub"
    }
    assert stated == {suffix: FORMATS[suffix].bit_rate for suffix in stated}
    assert stated.keys() > {".m4b", ".mp3", ".opus"}


def test_a_png_is_a_cover_and_a_damaged_cover_is_left_out(job, tmp_path):
    av = pytest.importorskip("av", reason=INSTALL)
    for name, cover, pictures in (
        ("a", image("PNG"), 1),
        ("b", CoverImage(b"\xff\xd8\xffdamaged", "image/jpeg"), 0),
        ("c", CoverImage(SDP, "image/jpeg"), 0),
    ):
        write(job, tmp_path / f"{name}.m4b", cover=cover)
        with av.open(str(tmp_path / f"{name}.m4b")) as file:
            assert len(file.streams.video) == pictures


def test_without_pyav_five_formats_remain_and_the_others_name_the_extra(job, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    for suffix in (".wav", ".flac", ".mp3", ".ogg", ".aiff"):
        written = write(job, tmp_path / f"book{suffix}")
        assert soundfile.info(tmp_path / f"book{suffix}").duration == pytest.approx(written.seconds, abs=0.1)
    with pytest.raises(UserError, match=r"\.m4b needs PyAV: pip install '\.\[books\]'"):
        write(job, tmp_path / "book.m4b")


def test_times_subtitles_and_silences_agree_with_the_sound(job, tmp_path):
    write(job, tmp_path / "book.wav", srt=True, vtt=True, times=True)
    times = json.loads((tmp_path / "book.json").read_text())
    chunks = [chunk for chapter in times["chapters"] for chunk in chapter["chunks"]]
    assert [chunk["number"] for chunk in chunks] == list(range(1, 19))
    assert times["chapters"][1]["start"] == times["chapters"][0]["end"]
    audio, _ = read_recording(tmp_path / "book.wav")
    assert times["seconds"] == pytest.approx(len(audio) / RATE, abs=1e-4)
    gap = audio[round(chunks[0]["end"] * RATE) : round(chunks[1]["start"] * RATE)]
    assert not gap.any()
    assert len(gap) / RATE == pytest.approx(1.2 - 0.1, abs=0.001)  # the edges of the two sounds contain the other 0.1 s
    srt, vtt = ((tmp_path / f"book.{form}").read_text() for form in ("srt", "vtt"))
    assert len(srt.split("\n\n")) == 18
    assert srt.startswith("1\n00:00:00,000 --> 00:00:0")
    assert vtt.startswith("WEBVTT\n\nNOTE Chapter 1\n\n00:00:00.000 --> 00:00:0")


def test_words_are_timed_in_what_is_left_when_the_silence_before_them_is_removed():
    audio = np.zeros(2 * RATE, np.float32)
    audio[RATE:] = 0.3 * np.sin(np.arange(RATE) / 20)
    speaker = SimpleNamespace(
        sample_rate=RATE,
        speak=lambda *given: SpokenChunk(audio, [], [SpokenWord("Rain", 1.0, 1.6), SpokenWord("fell.", 1.6, 2.0)]),
    )
    chunk = PlannedChunk(1, "", "Rain fell.", 0, PARAGRAPH, "", 0.0)
    spoken = sound_of(speaker, SimpleNamespace(chunk=chunk, seed=1), 1)
    assert len(spoken.audio) / RATE == pytest.approx(1.05, abs=0.02)
    assert [word.start for word in spoken.words] == pytest.approx([0.05, 0.65], abs=0.02)


def test_one_file_a_chapter_has_a_name_and_times_of_its_own_a_playlist_and_the_cover(job, tmp_path):
    cover = image("PNG")
    written = write(job, tmp_path / "book.wav", per_chapter=True, srt=True, times=True, playlist=True, cover=cover)
    assert [Path(file).name for file in written.files] == [
        "book 01 Chapter 1.wav",
        "book 01 Chapter 1.srt",
        "book 02 Chapter 2.wav",
        "book 02 Chapter 2.srt",
        "book.m3u8",
        "book.png",
        "book.json",
    ]
    assert (tmp_path / "book 02 Chapter 2.srt").read_text().startswith("1\n00:00:00,000")
    sounds = [f"book 0{number} Chapter {number}.wav" for number in (1, 2)]
    times = json.loads((tmp_path / "book.json").read_text())
    assert [chapter["file"] for chapter in times["chapters"]] == sounds
    assert times["chapters"][1]["start"] == 0
    seconds = [soundfile.info(tmp_path / name).duration for name in sounds]
    assert sum(seconds) == pytest.approx(written.seconds, abs=0.001)
    assert (tmp_path / "book.png").read_bytes() == cover.data
    lines = (tmp_path / "book.m3u8").read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[2::2]) == ("#EXTM3U", sounds)
    assert [float(line.removeprefix("#EXTINF:").partition(",")[0]) for line in lines[1::2]] == pytest.approx(
        seconds, abs=1
    )


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".mp3", ".m4b", ".opus"])
def test_a_chapter_of_which_nothing_can_be_heard_is_a_file_of_silence(tmp_path, suffix):
    av = pytest.importorskip("av", reason=INSTALL)

    class SilentSpeaker(StandInSpeaker):
        def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
            return SpokenChunk(np.zeros(0, np.float32)) if text == "Silent." else super().speak(text, seed)

    run_job(
        tmp_path / "job",
        Document([BookChapter(text, [TextBlock(PARAGRAPH, text)]) for text in ("Silent.", "Loud.")]),
        SilentSpeaker(),
    )
    written = write(tmp_path / "job", tmp_path / f"book{suffix}", per_chapter=True)
    with av.open(written.files[0]) as file:
        silent = np.concatenate([frame.to_ndarray().ravel() for frame in file.decode(audio=0)])
    assert len(silent) > 0
    assert np.abs(silent).max() < 0.01


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("../../etc/passwd", "b 1 etc passwd.mp3"),
        ('A: "B" / C?', "b 1 A B C.mp3"),
        ("..", "b 1 untitled.mp3"),
        ("x" * 500, f"b 1 {'x' * 120}.mp3"),
        ("章" * 120, f"b 1 {'章' * 70}.mp3"),
    ],
)
def test_a_title_makes_a_harmless_file_name(tmp_path, title, name):
    options = OutputOptions(tmp_path / "b.mp3", per_chapter=True)
    assert options.chapter_path(1, 1, title) == tmp_path / name.replace("b 1", "b 01")


class PeakySpeaker(StandInSpeaker):
    """Speaks a tone with strokes of a bell, which are 11 dB louder, as stressed vowels of lively speech may be."""

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        tone = super().speak(text, seed, voice).audio
        return SpokenChunk((tone * (0.9 + 2.3 * np.exp(-(np.arange(len(tone)) % 9600) / 100))).astype(np.float32))


@pytest.fixture(scope="module")
def peaky(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("peaky") / "job"
    run_job(folder, book(16), PeakySpeaker())
    return folder


# .flac, .aif and .aiff hold the samples of .wav, and .m4a the packets of .m4b
@pytest.mark.parametrize("suffix", [".wav", ".mp3", ".ogg", ".m4b", ".aac", ".opus", ".epub"])
def test_a_decoded_file_is_as_loud_as_was_asked_and_its_peaks_stay_below_the_ceiling(peaky, tmp_path, suffix):
    pytest.importorskip("av", reason=INSTALL)
    written = write(peaky, tmp_path / f"book{suffix}", loudness=-22.0)
    if suffix == ".epub":
        zipfile.ZipFile(tmp_path / "book.epub").extractall(tmp_path)
    sounds = sorted((tmp_path / "EPUB").glob("*.m4a")) or [tmp_path / f"book{suffix}"]
    # libsndfile decodes mp3, ogg and flac, which is not our decoder
    decoded = [read_recording(file) for file in sounds]
    meter = measured(np.concatenate([audio for audio, _ in decoded]), decoded[0][1])
    assert meter.loudness == pytest.approx(-22, abs=0.15)
    assert meter.true_peak <= levels.CEILING + 0.02
    assert (written.loudness, written.true_peak) == pytest.approx((meter.loudness, meter.true_peak), abs=0.1)


def test_the_whole_book_gets_one_gain(peaky, tmp_path):
    write(peaky, tmp_path / "book.wav", loudness=-22.0)
    parts = write(peaky, tmp_path / "parts.wav", loudness=-22.0, per_chapter=True)
    joined = np.concatenate([read_recording(file)[0] for file in parts.files])
    assert np.abs(joined - read_recording(tmp_path / "book.wav")[0]).max() < 1e-2


def test_finished_files_are_not_written_again_unless_something_changed(job, tmp_path):
    path = tmp_path / "book.wav"
    write(job, path)
    before = path.stat().st_mtime_ns
    write(job, path)
    assert path.stat().st_mtime_ns == before
    write(job, path, loudness=-19.0)
    assert path.stat().st_mtime_ns != before
    path.unlink()
    write(job, path, loudness=-19.0)
    assert path.exists()


def test_equal_titles_make_files_of_their_own_numbered_as_in_the_book(tmp_path):
    options = OutputOptions(tmp_path / "book.wav", per_chapter=True)
    assert [path.name for path in options.paths(["Café", "A", "CAFE\u0301"], [1, 3])] == [
        "book 01 Café.wav",
        "book 03 CAFE\u0301.wav",
    ]


def test_a_job_on_another_disk_is_published(job, tmp_path, monkeypatch):
    def across_disks(source, destination, call):
        if job in Path(source).parents and job not in Path(destination).parents:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        call(source, destination)

    for name in ("link", "rename", "replace"):
        monkeypatch.setattr(os, name, partial(across_disks, call=getattr(os, name)))
    written = write(job, tmp_path / "book.wav")
    assert soundfile.info(tmp_path / "book.wav").duration == pytest.approx(written.seconds, abs=0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["book.wav"]


@pytest.mark.parametrize("held", [True, False])
def test_of_two_processes_one_writes_the_output(tmp_path, monkeypatch, held):
    """Also when one of them was stopped for so long that its lease expired, or seems to have ended."""
    run_job(tmp_path / "job", book(4))
    now = [0.0]
    first, second = (JobStore(tmp_path / "job", lambda: now[0]) for _ in range(2))
    second.host = first.host
    monkeypatch.setattr(store_module, "is_running", lambda pid: False)  # so it seems to a process in another container
    if not held:
        monkeypatch.setattr(job_database, "lock_folder", lambda path: -1)  # simulates a file system without locks
    assert first.claim_output()
    with published(tmp_path / "book.wav", FileOwnership(first)) as target:
        target.write_bytes(b"the beg")
        now[0] += 2 * LEASE
        assert second.claim_output() != held
        if held:
            target.write_bytes(b"all")
        else:
            with published(tmp_path / "book.wav", FileOwnership(second)) as other:
                other.write_bytes(b"the whole book")
                with pytest.raises(UserError, match="another one has taken over writing the output"):
                    FileOwnership(first).publish(target, tmp_path / "book.wav")
            target.parent.mkdir()
            target.write_bytes(b"the beg")
            second.release()
            now[0] += 2 * LEASE
            assert first.claim_output()
    expected = b"all" if held else b"the beg"
    assert (tmp_path / "book.wav").read_bytes() == expected
    first.close()
    second.close()


def test_a_disk_that_is_full_before_the_output_is_begun_is_named(job, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(UserError, match=r"book\.wav: No space left on device .what was spoken is kept"):
        write(job, tmp_path / "book.wav")


def test_a_name_of_a_chapter_that_no_file_can_have_is_refused_before_a_word_is_spoken(job, tmp_path):
    options = OutputOptions(tmp_path / f"{'b' * 150}.wav", per_chapter=True)
    with closing(JobStore(job)) as store, pytest.raises(UserError, match="File name too long"):
        check_replaced(store, options, ["t" * 120], [1], False)


def test_words_are_listed_and_underlined_where_they_are_heard(tmp_path):
    """The stand-in's words last 2 ms each; a pause before a chunk moves those after it."""
    run_job(tmp_path / "job", book(4), TimedStandIn())
    written = write(tmp_path / "job", tmp_path / "book.flac", srt=True, vtt=True, times=True, word_times=True)
    chapters = json.loads((tmp_path / "book.json").read_text())["chapters"]
    chunks = [chunk for chapter in chapters for chunk in chapter["chunks"]]
    for chunk in chunks:
        assert [word["word"] for word in chunk["words"]] == chunk["text"].split()
        for index, word in enumerate(chunk["words"][:4]):
            assert word["start"] == pytest.approx(chunk["start"] + 0.002 * index)
    srt = (tmp_path / "book.srt").read_text()
    assert srt.count("<u>") == sum(len(chunk["words"]) for chunk in chunks)
    times = re.findall(r"(\S+) --> (\S+)", srt)
    assert all(start < end for start, end in times)
    assert all(before[1] <= after[0] for before, after in pairwise(times))
    assert "<u>Chapter</u> 1" in (tmp_path / "book.vtt").read_text()
    assert len(written.files) == 4


class TimedStandIn(StandInSpeaker):
    """States that each word lasts 2 ms."""

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        words = [SpokenWord(word, 0.002 * index, 0.002 * index + 0.002) for index, word in enumerate(text.split())]
        return SpokenChunk(super().speak(text, seed).audio, [], words)
