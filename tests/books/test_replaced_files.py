"""Test that a job replaces only its own unchanged files of earlier runs, and other files only with force."""

from contextlib import closing
from pathlib import Path

import pytest

from ane.books.output import OutputOptions, check_replaced, write_book_files
from ane.books.store import JobStore
from ane.system.errors import UserError
from tests.books.stand_in import book, run_job, write


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
