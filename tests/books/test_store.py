"""Test a job on disk: the sounds it keeps, the chunks it speaks again, and how processes share it."""

import functools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import pytest

from ane.books import job_database
from ane.books.assembly import time_book
from ane.books.document import BookChapter, Document
from ane.books.job_database import FILE
from ane.books.job_leases import LEASE
from ane.books.narration import narrate
from ane.books.output import OutputOptions
from ane.books.plan import Silences, SpeechIdentity, plan_book
from ane.books.speakers import SpokenChunk
from ane.books.store import JobStore
from ane.commands.read_report import seconds_of
from ane.system.errors import UserError
from ane.text import nothing_to_say_error
from ane.text.blocks import PARAGRAPH, TextBlock
from ane.text.cast import Cast
from tests.books.stand_in import RATE, StandInSpeaker, book, plan_for, run_job, sounds, write
from tests.books.test_ownership import FORKS
from tools.campaigns.interrupted_work import narration_state, whole_run
from tools.campaigns.kill import RESULTS, compile_faults, kill_at_random, start_child, status_of

CHUNKS = 18


def test_only_what_is_new_or_spoken_in_another_way_is_spoken_again(tmp_path):
    job, speaker = tmp_path / "job", StandInSpeaker()
    assert run_job(job, book()) == CHUNKS
    assert run_job(job, book()) == 0
    before = sounds(job)
    assert run_job(job, book(changed=4), speaker) == 1
    assert "changed paragraph" in speaker.spoken[0]
    assert sum(old != new for old, new in zip(before, sounds(job), strict=True)) == 1
    assert run_job(job, book(), StandInSpeaker("other")) == CHUNKS
    assert run_job(job, book(), StandInSpeaker("other", steps=4)) == CHUNKS


@pytest.mark.parametrize(
    ("message", "times", "opens"),
    [
        ("database is locked", 39, True),
        ("database is locked", 40, False),
        ("disk I/O error", 1, False),
        ("database or disk is full", 1, False),
    ],
)
def test_a_process_that_opens_the_same_job_is_waited_for(tmp_path, monkeypatch, message, times, opens):
    """Four seconds at most."""
    left, slept = [message] * times, []

    class Connection(sqlite3.Connection):
        def execute(self, statement, *values):
            if "journal_mode" in statement and left:
                raise sqlite3.OperationalError(left.pop())
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Connection))
    monkeypatch.setattr(job_database.time, "sleep", slept.append)
    with pytest.raises(UserError, match=message.replace("database or", "the")) if not opens else nullcontext():
        JobStore(tmp_path / "job").close()
    assert sum(slept) == pytest.approx(3.9 if times > 1 else 0)


def test_the_time_of_loading_does_not_count_in_the_time_left(tmp_path):
    """The first chunk takes 100 seconds, the others one each."""
    now, left = [0.0], []
    speaker = StandInSpeaker(before=lambda text: now.__setitem__(0, now[0] + (1 if now[0] else 100)))
    with closing(JobStore(tmp_path / "job")) as store:
        plan = plan_for(speaker, book(), store.seed(7))
        store.adopt(plan)
        narrate(store, plan, speaker, lambda done, total, seconds: left.append(seconds), lambda: now[0])
        assert left[0] is None
        assert left[1] == pytest.approx(len(plan.chunks) - 2, rel=0.2)
        chunks, silence = store.chunks(), sum(chunk.silence for chunk in plan.chunks)
        assert seconds_of(chunks) == pytest.approx(time_book(chunks, plan.chapters).samples / RATE, abs=0.05)
        assert seconds_of(chunks) > silence / 2


def execute(job: Path, statement: str, *values: object) -> list[tuple[int, ...]]:
    """The rows that a statement finds in the database of a job."""
    with closing(sqlite3.connect(job / FILE)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def test_what_was_spoken_with_other_options_is_kept_until_the_output_is_written(tmp_path):
    def rows() -> int:
        [[count]] = execute(tmp_path / "job", "SELECT count(*) FROM sounds")
        return count

    run_job(tmp_path / "job", book())
    with pytest.raises(UserError):
        run_job(tmp_path / "job", book(), StandInSpeaker("forgot an option", before=refuse))
    assert rows() == 2 * CHUNKS
    assert run_job(tmp_path / "job", book()) == 0
    write(tmp_path / "job", tmp_path / "book.wav")
    assert rows() == CHUNKS


FORMER_VERSION = [
    "UPDATE chunks SET text = '[voice:' || voice || ']' || text || '[voice]' WHERE voice != ''",
    "ALTER TABLE chunks DROP COLUMN voice",
    "PRAGMA user_version = 2",
]


def test_a_job_of_the_former_version_whose_texts_have_marks_of_voices_goes_on(tmp_path):
    """It has neither another plan nor other files after it."""
    job, cast = tmp_path / "job", Cast(speakers={"Anna": "a"})
    document = Document([BookChapter("A", [TextBlock(PARAGRAPH, "“Come in,” said Anna. “It is late.”")])])
    speaker = StandInSpeaker()
    plan = plan_book(document, SpeechIdentity("model", "voice", {}, 7), Silences(), (10, 12), cast=cast)
    voices = [("“Come in,”", "Anna"), ("said Anna.", ""), ("“It is", "Anna"), ("late.”", "Anna")]
    with closing(JobStore(job)) as store:
        store.adopt(plan)
        store.save(store.claim(plan.digest), *[np.ones(3, np.float32), RATE, 1.0, []])
    for statement in FORMER_VERSION:
        execute(job, statement)
    assert execute(job, "SELECT text FROM chunks WHERE number = 1") == [("[voice:Anna]“Come in,”[voice]",)]
    for _ in range(2):
        with closing(JobStore(job)) as store:
            assert [(chunk.chunk.text, chunk.chunk.voice) for chunk in store.chunks()] == voices
            assert [vars(chunk.chunk) for chunk in store.chunks()] == [vars(chunk) for chunk in plan.chunks]
            assert store.missing_texts(plan) == (0, 1 if not speaker.spoken else 4)
            store.adopt(plan)
            narrate(store, plan, speaker, lambda done, total, left: None)
    assert speaker.spoken == [text for text, _ in voices[1:]]
    assert speaker.voices == [voice for _, voice in voices[1:]]


def refuse(text: str) -> None:
    raise UserError("stopped")


def test_the_order_of_work_does_not_change_a_sound(tmp_path):
    run_job(tmp_path / "whole", book())
    run_job(tmp_path / "parts", book(paragraphs=4))
    run_job(tmp_path / "parts", book())
    assert sounds(tmp_path / "parts") == sounds(tmp_path / "whole")


def test_redo_speaks_the_named_chunks_with_another_seed(tmp_path):
    run_job(tmp_path / "job", book())
    before = sounds(tmp_path / "job")
    assert run_job(tmp_path / "job", book(), redo=(1, 5)) == 2
    after = sounds(tmp_path / "job")
    assert [number for number, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new] == [1, 5]
    assert run_job(tmp_path / "job", book()) == 0
    with pytest.raises(UserError, match="redo must name chunks from 1 to 18, got 19"):
        run_job(tmp_path / "job", book(), redo=(19,))


def test_the_seed_of_a_job_is_random_once_and_then_kept(tmp_path):
    stores = [JobStore(tmp_path / "job") for _ in range(2)]
    assert stores[0].seed(None) == stores[1].seed(None)
    assert stores[0].seed(5) == 5
    assert stores[1].seed(None) != 5, "a run that is refused before it has a plan changes nothing"
    stores[0].adopt(plan_for(StandInSpeaker(), book(), 5))
    assert stores[1].seed(None) == 5


def adopted(path, clock):
    store = JobStore(path, clock)
    plan = plan_for(StandInSpeaker(), book())
    store.adopt(plan)
    return store, plan


def test_two_processes_never_get_the_same_chunk_unless_one_is_silent_for_a_minute(tmp_path):
    now = [0.0]
    first, plan = adopted(tmp_path / "job", lambda: now[0])
    second, _ = adopted(tmp_path / "job", lambda: now[0])
    ours, theirs = first.claim(plan.digest), second.claim(plan.digest)
    assert (ours.chunk.number, theirs.chunk.number) == (1, 2)
    now[0] += 0.7 * LEASE
    second.renew()
    now[0] += 0.7 * LEASE
    taken = second.claim(plan.digest)
    assert taken.chunk.number == 1
    audio = np.full(2400, 0.1, np.float32)
    assert not first.save(ours, audio, 24000, 1.0, [])
    assert second.save(taken, audio, 24000, 1.0, [])
    assert second.save(theirs, audio, 24000, 1.0, [])
    assert second.claim(plan.digest).chunk.number == 3


@FORKS
def test_the_chunk_of_a_process_that_ended_is_free_at_once(tmp_path):
    store, plan = adopted(tmp_path / "job", lambda: 0.0)
    ended = start_child(lambda: None)
    status_of(ended)
    store.claim(plan.digest)
    execute(tmp_path / "job", "UPDATE leases SET pid = ?", ended)
    assert store.claim(plan.digest).chunk.number == 1


def test_a_job_that_another_process_speaks_is_not_changed_under_it(tmp_path):
    first, plan = adopted(tmp_path / "job", lambda: 0.0)
    second = JobStore(tmp_path / "job", lambda: 0.0)
    first.claim(plan.digest)
    with pytest.raises(UserError, match=f"process {os.getpid()} on .* is speaking the job"):
        second.adopt(plan_for(StandInSpeaker("other"), book()))
    first.release()
    second.adopt(plan_for(StandInSpeaker("other"), book()))
    with pytest.raises(UserError, match="this one stops"):
        first.claim(plan.digest)


def test_a_job_whose_files_another_process_writes_with_other_options_is_left_to_it(tmp_path):
    """Both would report files that the last of them replaces."""
    first, plan = adopted(tmp_path / "job", lambda: 0.0)
    first.adopt(plan, OutputOptions(tmp_path / "book.wav", srt=True).digest)
    second = JobStore(tmp_path / "job", lambda: 0.0)
    first.claim(plan.digest)
    with pytest.raises(UserError, match=r"is speaking the job in .* with another text, voice or option"):
        second.adopt(plan, OutputOptions(tmp_path / "book.wav", loudness=-19.0).digest)
    (tmp_path / "link").symlink_to(tmp_path)
    second.adopt(plan, OutputOptions(tmp_path / "link" / "book.wav", srt=True).digest)
    first.save(first.claim(plan.digest), np.zeros(9, np.float32), RATE, 0.1, [])
    first.release()
    second.adopt(plan, OutputOptions(tmp_path / "book.wav", loudness=-19.0).digest)
    assert second.progress()[0] == 1


def test_a_chunk_without_a_letter_for_the_voice_is_silence_with_a_note(tmp_path):
    class ChineseSpeaker(StandInSpeaker):
        def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
            if text == "Chapter 1":
                raise nothing_to_say_error(text)
            return super().speak(text, seed)

    run_job(tmp_path / "job", book(), ChineseSpeaker())
    with closing(JobStore(tmp_path / "job")) as store:
        chunk = store.chunks()[0]
        assert chunk.samples == len(store.sound(chunk.chunk.key)) == 0
        assert "no letter" in chunk.notes[0]


def test_a_chunk_that_cannot_be_spoken_is_named_and_the_others_are_kept(tmp_path):
    def fail(text):
        if text == "Chapter 2":
            raise UserError("too long")

    with pytest.raises(UserError, match="chunk 10 of 18, 'Chapter 2': too long"):
        run_job(tmp_path / "job", book(), StandInSpeaker(before=fail))
    assert run_job(tmp_path / "job", book()) == CHUNKS - 9


@pytest.mark.parametrize(("content", "message"), [(b"not a database" * 100, "not a database"), (b"", None)])
def test_a_damaged_database_is_one_clear_line(tmp_path, content, message):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / FILE).write_bytes(content)
    if message is None:
        assert run_job(tmp_path / "job", book()) == CHUNKS
        return
    with pytest.raises(UserError, match=message):
        run_job(tmp_path / "job", book())


def test_a_job_of_a_later_version_is_refused(tmp_path):
    JobStore(tmp_path / "job").close()
    execute(tmp_path / "job", "PRAGMA user_version = 9")
    with pytest.raises(UserError, match="another version"):
        JobStore(tmp_path / "job")


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_a_new_job_is_discarded_unless_another_process_uses_or_began_it(tmp_path):
    job = tmp_path / "job"
    with closing(JobStore(job)) as ours:
        with closing(JobStore(job)) as other:
            ours.discard_new()
            other.discard_new()
            other.seed(None)
        ours.discard_new()
    assert not job.exists()
    run_job(job, book(1))
    with closing(JobStore(job)) as ours:
        ours.discard_new()
    assert job.exists()


def test_a_sample_of_the_campaign_finds_nothing_wrong(tmp_path):
    command = [sys.executable, "-m", "tools.campaigns", "kill", "--every", "900", "--kills", "0", "--stops", "0", "-o"]
    done = subprocess.run(
        [*command, tmp_path / "c.json"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LD_PRELOAD": str(compile_faults(tmp_path))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "c.json").read_text())["trials"] >= 20


def test_the_committed_campaign_found_nothing_wrong():
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert result["failures"] == []
    assert result["trials"] >= 1000
    assert result["sigkills"] >= 20
    assert result["sigstops"] >= 20


@FORKS
def test_two_processes_on_one_job_of_which_one_is_killed_speak_each_chunk_once(tmp_path):
    (tmp_path / "alone").mkdir()
    whole_run(tmp_path / "alone")
    assert kill_at_random(tmp_path / "shared", narration_state(tmp_path / "alone"), 3) == []
