"""Test that `ane read --ray` makes the same job as one process."""

import sqlite3
from pathlib import Path

import pytest
import soundfile

from ane.cli import main

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]' makes these tests run")


def test_a_book_sounds_as_on_one_machine(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("One line.\n\nAnother line.\n\nThe last line.\n", encoding="utf-8")
    command = ["read", "book.txt", "--bundle=demo", "--preset=fastest", "--seed", "3", "--threads", "1", "-o"]
    assert main([*command, "alone.wav"]) == 0
    assert main([*command, "cluster.wav", "--ray", "--workers", "2"]) == 0
    assert "3 of 3 chunks spoken now" in capsys.readouterr().err
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
