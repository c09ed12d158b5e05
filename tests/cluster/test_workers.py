"""Test that work on a cluster is neither lost nor wrong if a worker dies or a call fails, also that of `ane read`."""

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from ane.cli import main
from ane.cluster.workers import connected, map_on_workers
from ane.system.errors import UserError
from tests.refusals import assert_refused, refusal_of

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' makes these tests run")


@pytest.fixture(scope="module")
def ray() -> Iterator:
    with connected(None) as module:
        yield module


def make_killed_once(mark: Path):
    """A function that kills its process, the first time that it gets 3; else it returns the square."""

    def square(number: int) -> int:
        if number == 3 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    return square


def make_refusing():
    def refuse(number: int) -> int:
        if number == 2:
            raise UserError("2 cannot be spoken")
        return number

    return refuse


def test_the_calls_of_a_killed_worker_are_repeated(ray, tmp_path):
    mark = tmp_path / "killed"
    found = dict(map_on_workers(ray, lambda: make_killed_once(mark), ((number,) for number in range(8)), workers=2))
    assert mark.exists()
    assert found == {(number,): number * number for number in range(8)}


def test_calls_that_are_not_known_yet_are_waited_for(ray):
    def calls():
        yield (1,)
        time.sleep(0.1)
        yield None
        yield (3,)

    assert sorted(result for _, result in map_on_workers(ray, make_refusing, calls(), workers=2)) == [1, 3]


def make_dying():
    return lambda number: os.kill(os.getpid(), signal.SIGKILL)


def make_missing():
    raise UserError("no bundle is named 'x'")


@pytest.mark.parametrize("make", [make_dying, make_missing])
def test_a_worker_that_always_dies_or_cannot_start_ends_the_work(ray, make):
    assert_refused(
        "a worker of the cluster died 3 times, or could not start",
        lambda: list(map_on_workers(ray, make, [(1,)], workers=1)),
    )


def test_more_workers_than_there_is_room_for_are_refused(ray):
    assert_refused(
        r"room for \d+ workers of 1 threads, not for 1000",
        lambda: list(map_on_workers(ray, make_refusing, [(1,)], workers=1000)),
    )


def test_an_error_of_the_user_is_raised_in_one_line(ray):
    line = refusal_of(lambda: list(map_on_workers(ray, make_refusing, ((number,) for number in range(4)), workers=1)))
    assert line == "2 cannot be spoken"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "nowhere.invalid:6379", ":"])
def test_a_cluster_that_does_not_answer_is_named(address):
    with pytest.raises(UserError, match=r"cannot connect to the Ray cluster '.*: .*give HOST:PORT"), connected(address):
        pass


def test_a_book_sounds_as_on_one_machine(tmp_path: Path, monkeypatch, succeed):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("One line.\n\nAnother line.\n\nThe last line.\n", encoding="utf-8")
    command = ["read", "book.txt", "--bundle=demo", "--preset=fastest", "--seed", "3", "--threads", "1", "-o"]
    assert main([*command, "alone.wav"]) == 0
    assert "3 of 3 chunks spoken now" in succeed(*command, "cluster.wav", "--ray", "--workers", "2")
    alone, cluster = (soundfile.read(name)[0] for name in ("alone.wav", "cluster.wav"))
    assert len(alone) > 24000
    assert (alone == cluster).all()


def test_the_workers_check_and_this_process_does_not(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("One line.\n\nAnother line.\n", encoding="utf-8")
    command = [
        "read",
        "book.txt",
        "--bundle=demo",
        "--preset=fastest",
        "--seed",
        "3",
        "--threads",
        "1",
        "--max-codes",
        "20",
        "-o",
    ]
    assert main([*command, "alone.wav"]) == 0

    def judged(*_: object) -> None:
        raise AssertionError("this process judged a chunk")

    monkeypatch.setattr("ane.cluster.narration.judged", judged)
    monkeypatch.setattr("ane.books.retries.judged", judged)
    assert main([*command, "cluster.wav", "--ray", "--workers", "1"]) == 0
    found = [
        sqlite3.connect(f"{name}.job/job.sqlite")
        .execute("SELECT key, checker, problems, replaced FROM sounds ORDER BY key")
        .fetchall()
        for name in ("alone.wav", "cluster.wav")
    ]
    assert found[0] == found[1]
    assert any(problems != "[]" for _, _, problems, _ in found[0])  # chunks had problems, so they were spoken again


def test_workers_without_a_cluster_are_refused(capsys):
    assert main(["read", "book.txt", "-o", "book.wav", "--workers", "2"]) == 1
    assert capsys.readouterr().err == "ane: error: --workers has no effect without --ray\n"
