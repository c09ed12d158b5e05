"""Test how `ane say` reads a text: markup, the lexicon, the speed, and the explanation of readings."""

import json
import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from ane.audio import playback
from ane.cli import main
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.system import streams
from tests.audio.recording_device import RecordingDevice

SHORT = ("--bundle=demo", "--preset=fastest", "--seed", "1", "--max-codes", "20")


def test_a_named_pipe_is_read_with_a_word_while_nobody_writes_to_it(capsys, succeed, workplace, monkeypatch):
    """``<(…)`` of a shell is a pipe as well, whose writer is there."""
    os.mkfifo("pipe")
    monkeypatch.setattr(streams, "PATIENCE", 0.1)
    writing = threading.Timer(0.5, lambda: Path("pipe").write_text("It rained."))
    writing.start()
    assert "waiting for text from the pipe pipe" in " ".join(
        succeed("say", "-f", "pipe", "-o", "pipe.wav", *SHORT).split()
    )
    writing.join()
    reading, writer = os.pipe()
    os.write(writer, b"It rained.")
    os.close(writer)
    assert main(["say", "-f", f"/dev/fd/{reading}", "-o", "substituted.wav", *SHORT]) == 0
    os.close(reading)
    assert "waiting" not in capsys.readouterr().err
    assert Path("pipe.wav").read_bytes() == Path("substituted.wav").read_bytes()


def explained(capsys: pytest.CaptureFixture[str], *flags: str) -> dict:
    assert main(["say", "--explain", "--json", "--bundle", "demo", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_line_of_the_lexicon_on_the_page_applies_to_its_example(succeed):
    page = (Path(__file__).parents[2] / "docs" / "writing.md").read_text(encoding="utf-8")
    lines, text = re.search(r"printf '(.*)' > words\.tsv\n.*? \"(.*?)\"", page).groups()
    Path("words.tsv").write_text(lines.encode().decode("unicode_escape"), encoding="utf-8")
    printed = succeed("say", "--bundle=demo", "--lexicon=words.tsv", "--explain", text)
    for number, line in enumerate(Path("words.tsv").read_text(encoding="utf-8").splitlines(), 1):
        assert f"words.tsv, line {number}\n" in printed, line


def test_the_explanation_has_the_tokens_of_the_text_that_is_spoken(capsys, workplace):
    (workplace / "words.tsv").write_text("GB\tgig\n", encoding="utf-8")
    found = explained(capsys, "3 GB [pause:1s] left", "--lexicon", "words.tsv", "--speed", "1.5")
    [first, second] = found["chunks"]
    assert (first["normalised"], first["silence_after"], second["normalised"]) == ("three gig", 1.0, "left")
    assert found["respelled"] == [{"text": "GB", "spoken": "gig", "rule": "lexicon: words.tsv, line 1"}]
    assert first["speed"] == second["speed"] == 1.5
    [plain] = explained(capsys, "three gig")["chunks"]
    assert first["tokens"] == plain["tokens"]


@pytest.mark.timeout(60)
def test_piped_text_is_spoken_while_it_arrives(monkeypatch, capsys):
    """The pipe has no more than the first clause until that is spoken, and the rest is spoken after it is played."""
    device = RecordingDevice()
    monkeypatch.setattr(playback, "open_device", device)
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reading))
    os.write(writing, "The café was over there, and ".encode())
    spoken = []

    def stand_in(self, request, run):
        spoken.append(request.text)
        if len(spoken) == 1:
            os.write(writing, b"then it was gone.\r\nThe end.")
            os.close(writing)
        assert device.started == (len(spoken) > 1)
        return stream_of(self, replace(request, text="hi"), run)

    stream_of = TortoiseSpeaker.stream_of
    monkeypatch.setattr(TortoiseSpeaker, "stream_of", stand_in)
    assert main(["say", "--follow", *SHORT, "-o", "x.wav", "--play", "--json"]) == 0
    assert "".join(spoken) == "The café was over there, and then it was gone.\nThe end."
    assert spoken[0] == "The café was over there,"
    assert len(json.loads(capsys.readouterr().out)["chunks"]) == len(spoken)
    assert soundfile.info("x.wav").frames > 0
