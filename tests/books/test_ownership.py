"""Test that a job replaces only content that it wrote itself, wherever and however old that content is."""

import os
import signal
import stat
from contextlib import closing
from pathlib import Path

import pytest

from ane.books import output
from ane.books.output import OutputOptions, check_replaced, write_book_files
from ane.books.ownership import FileOwnership
from ane.books.store import JobStore
from ane.system.errors import UserError
from tests.books.stand_in import StandInSpeaker, book, run_job, write
from tools.campaigns.kill import in_child, start_child, status_of

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: run it on Linux or macOS")
REFUSED = "exists, and this job did not write it"


@pytest.mark.parametrize("suffix", [".wav", ".srt"])
def test_a_file_that_the_user_makes_or_edits_while_files_are_written_is_kept(tmp_path, monkeypatch, suffix):
    """At the last moment: all was in order when the writing began, and the sound is complete in the job's folder."""
    job, path = tmp_path / "job", tmp_path / "book.wav"
    run_job(job, book(4))
    edited = path.with_suffix(suffix)
    for user in ("makes", "edits"):
        publish = FileOwnership.publish

        def after_the_user(ownership, file, destination, publish=publish):
            if destination.suffix == suffix:
                edited.write_text("the user's")
            return publish(ownership, file, destination)

        with monkeypatch.context() as patched:
            patched.setattr(FileOwnership, "publish", after_the_user)
            with pytest.raises(UserError, match=rf"book\{suffix} (exists|was changed)"):
                write(job, path, srt=True, title=user)
        assert edited.read_text() == "the user's"
        edited.unlink()
        write(job, path, srt=True, title=user)


def test_a_subtitle_edited_while_the_next_run_narrates_is_kept_and_so_is_the_sound_that_fits_it(tmp_path):
    job, path, subtitles = tmp_path / "job", tmp_path / "book.wav", tmp_path / "book.srt"
    run_job(job, book(4))
    write(job, path, srt=True)
    before = path.read_bytes()
    run_job(job, book(4), StandInSpeaker(before=lambda text: subtitles.write_text("edited")), redo=(2,))
    with pytest.raises(UserError, match=r"book\.srt was changed since this job wrote it"):
        write(job, path, srt=True)
    assert subtitles.read_text() == "edited"
    assert path.read_bytes() == before


def write_and_be_killed(job: Path, path: Path, when: str) -> None:
    """In a process of its own, whose functions this replaces."""
    rename = os.replace

    def kill_around(*names: object) -> None:
        if when == "after":
            rename(*names)
        os.kill(os.getpid(), signal.SIGKILL)

    if when == "beginning":
        output._write = kill_around
    else:
        os.replace = kill_around
    write(job, path, srt=True, title="Second")


@FORKS
@pytest.mark.parametrize("when", ["beginning", "before", "after"])
def test_a_file_edited_after_a_run_was_killed_is_kept_and_one_that_was_not_is_replaced(tmp_path, when):
    """The run is killed before it writes, and just before and after it renames the first file."""
    job, path = tmp_path / "book.wav.job", tmp_path / "book.wav"
    run_job(job, book(4))
    write(job, path, srt=True)
    assert in_child(lambda: write_and_be_killed(job, path, when)) == -signal.SIGKILL
    whole = path.read_bytes()
    path.write_bytes(whole + b"a tag of the user's")
    with closing(JobStore(job)) as store, pytest.raises(UserError, match=r"book\.wav was changed"):
        check_replaced(store, OutputOptions(path, srt=True), ["A"], [1], force=False)
    with pytest.raises(UserError, match=r"book\.wav was changed"):
        write(job, path, srt=True, title="Third")
    assert path.read_bytes() == whole + b"a tag of the user's"
    path.write_bytes(whole)
    assert str(path) in write(job, path, srt=True, title="Third").files


def test_subtitles_follow_the_sound_however_the_path_is_spelt(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    monkeypatch.chdir(tmp_path / "there")
    run_job(Path("b.flac.job"), book(4))
    write(Path("b.flac.job"), Path("b.flac"), srt=True)
    first = Path("b.srt").read_text()
    monkeypatch.chdir(tmp_path)
    for number, folder in enumerate(("there", "link", f"{tmp_path}/link/../there"), 1):
        run_job(Path(folder, "b.flac.job"), book(4, changed=number))
        found = write(Path(folder, "b.flac.job"), Path(folder, "b.flac"))
        assert found.files == [str(Path(folder, "b.flac")), str(Path(folder, "b.srt"))]
        assert found.former == []
        assert Path(folder, "b.srt").read_text() != first
        assert write(Path("there/b.flac.job"), Path("there/b.flac")).files == ["there/b.flac", "there/b.srt"]


def test_the_subtitles_of_one_text_are_not_replaced_by_those_of_another(tmp_path):
    run_job(tmp_path / "x.flac.job", book(4))
    write(tmp_path / "x.flac.job", tmp_path / "x.flac", srt=True)
    before = (tmp_path / "x.srt").read_bytes()
    run_job(tmp_path / "x.wav.job", book(6))
    with pytest.raises(UserError, match=rf"x\.srt {REFUSED}"):
        write(tmp_path / "x.wav.job", tmp_path / "x.wav", srt=True)
    assert (tmp_path / "x.srt").read_bytes() == before
    assert not (tmp_path / "x.wav").exists()


def test_a_job_of_an_earlier_version_knows_its_files_by_the_hashes_that_it_kept(tmp_path):
    """They were a fact of names and SHA-256."""
    run_job(tmp_path / "job", book(4))
    path = tmp_path / "book.wav"
    write(tmp_path / "job", path)
    with closing(JobStore(tmp_path / "job")) as store:
        with store._transaction() as run:
            [[digest]] = run("SELECT sha256 FROM outputs").fetchall()
            run("DROP TABLE outputs")
        store.set_fact("hashes", {"book.wav": digest})
    assert write(tmp_path / "job", path, title="Another").files == [str(path)]
    path.write_bytes(path.read_bytes() + b"a tag")
    with pytest.raises(UserError, match="was changed"):
        write(tmp_path / "job", path, title="A third")


def test_a_file_keeps_its_mode_and_a_job_is_its_users_alone(tmp_path):
    former = os.umask(0o022)
    try:
        job, path = tmp_path / "book.wav.job", tmp_path / "book.wav"
        run_job(job, book(4))
        write(job, path, srt=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o600)
        write(job, path, srt=True, title="Another")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.with_suffix(".srt").stat().st_mode) == 0o644
        assert stat.S_IMODE(job.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in job.iterdir()} == {0o600}
    finally:
        os.umask(former)


@FORKS
def test_processes_that_begin_a_job_at_the_same_moment_share_it(tmp_path):
    for attempt in range(3):
        start = os.pipe()

        def begin(job: Path = tmp_path / str(attempt) / "job", start: tuple[int, int] = start) -> None:
            os.close(start[1])
            os.read(start[0], 1)  # returns in all processes when the test closes the pipe
            JobStore(job).close()

        children = [start_child(begin) for _ in range(4)]
        for end in start:
            os.close(end)
        assert [status_of(child) for child in children] == [0] * 4


def test_a_file_that_the_job_did_not_write_is_not_replaced(tmp_path):
    job, path, foreign = tmp_path / "job", tmp_path / "talk.wav", "exists, and this job did not write it: move it, .*"
    options, chapters = OutputOptions(path, srt=True), OutputOptions(path, per_chapter=True)
    run_job(job, book(4))
    with closing(JobStore(job)) as store:
        path.touch()
        check_replaced(store, options, ["A"], [1], force=False)  # replacing an empty file loses nothing
        for name in ("talk.wav", "talk.srt"):
            (tmp_path / name).write_text("the user's")
            with pytest.raises(UserError, match=rf"{name} {foreign}force=True"):
                check_replaced(store, options, ["A"], [1], force=False)
            check_replaced(store, options, ["A"], [1], force=True)
            if name == "talk.wav":
                path.unlink()
        write_book_files(store, options, force=True)
        titles = store.fact("chapters")
        write_book_files(store, chapters)
        for each in (options, chapters):
            check_replaced(store, each, titles, [1], force=False)


def test_subtitles_of_an_earlier_run_follow_the_sound_and_other_files_of_it_are_named(tmp_path):
    job = tmp_path / "job"
    run_job(job, book(4))
    assert write(job, tmp_path / "book.wav", srt=True).former == []
    before = (tmp_path / "book.srt").stat().st_mtime_ns
    again = write(job, tmp_path / "book.wav", title="Another")
    assert (tmp_path / "book.srt").stat().st_mtime_ns != before
    assert str(tmp_path / "book.srt") in again.files
    chapters = write(job, tmp_path / "book.wav", per_chapter=True)
    assert set(chapters.former) == {str(tmp_path / "book.wav"), str(tmp_path / "book.srt")}


def test_the_output_of_a_job_that_was_moved_is_still_its_own(tmp_path, monkeypatch):
    run_job(tmp_path / "there" / "book.wav.job", book(4))
    monkeypatch.chdir(tmp_path)
    write(Path("there", "book.wav.job"), Path("there", "book.wav"), srt=True)
    (tmp_path / "there").rename(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    with closing(JobStore(Path("book.wav.job"))) as store:
        check_replaced(store, OutputOptions(Path("book.wav"), srt=True), ["A"], [1], force=False)


def test_subtitles_that_were_edited_are_left_and_replaced_by_force_alone(tmp_path):
    run_job(tmp_path / "job", book(4))
    path, subtitles = tmp_path / "book.wav", tmp_path / "book.srt"
    write(tmp_path / "job", path, srt=True, vtt=True)
    subtitles.write_text("edited")
    again = write(tmp_path / "job", path, title="Another")
    assert subtitles.read_text() == "edited"
    assert again.former == [str(subtitles)]
    assert str(tmp_path / "book.vtt") in again.files
    options = OutputOptions(path, srt=True)
    with closing(JobStore(tmp_path / "job")) as store:
        with pytest.raises(UserError, match=r"book\.srt was changed since this job wrote it: move it, .*force=True"):
            check_replaced(store, options, ["A"], [1], force=False)
        check_replaced(store, options, ["A"], [1], force=True)
        write_book_files(store, options, force=True)
        check_replaced(store, options, ["A"], [1], force=False)
    assert subtitles.read_text() != "edited"
    with closing(JobStore(tmp_path / "job")) as store, path.open("ab") as sound:
        sound.write(b"a tag")
        sound.flush()
        with pytest.raises(UserError, match=r"book\.wav was changed since this job wrote it"):
            check_replaced(store, options, ["A"], [1], force=False)
