"""`ane read --ray` gives the job that one process gives."""

from pathlib import Path

import pytest
import soundfile

from ane.cli import main

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tortoise-ane[ray]' makes these tests run")


def test_a_book_sounds_as_on_one_machine(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("One line.\n\nAnother line.\n\nThe last line.\n", encoding="utf-8")
    command = ["read", "book.txt", "--preset", "fastest", "--seed", "3", "--threads", "1", "-o"]
    assert main([*command, "alone.wav"]) == 0
    assert main([*command, "cluster.wav", "--ray", "--workers", "2"]) == 0
    assert "3 of 3 chunks spoken now" in capsys.readouterr().err
    alone, cluster = (soundfile.read(name)[0] for name in ("alone.wav", "cluster.wav"))
    assert len(alone) > 24000
    assert (alone == cluster).all()


def test_workers_without_a_cluster_are_refused(capsys):
    assert main(["read", "book.txt", "-o", "book.wav", "--workers", "2"]) == 1
    assert capsys.readouterr().err == "ane: error: --workers has no effect without --ray\n"
