"""Test that sound is written: as a whole file, while it arrives, and to standard output."""

import os
import subprocess
import sys
import time
from typing import BinaryIO

import numpy as np
import pytest
import soundfile

from ane.audio import check_output, read_audio, read_clip, write, writing
from ane.audio.media import FORMATS
from ane.system.errors import UserError
from tests.audio.recording_device import RATE, tone
from tests.refusals import assert_refused


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
@pytest.mark.parametrize("rate", [8000, 24000, 44100])
def test_what_is_written_is_read_back_at_its_rate_and_length(tmp_path, suffix, rate):
    audio = tone(1.5, rate)
    write(tmp_path / f"tone.{suffix}", audio, rate)
    back, back_rate = read_clip(tmp_path / f"tone.{suffix}")
    assert (back_rate, back.shape, back.dtype) == (rate, audio.shape, np.float32)
    error = np.square(back - audio).sum() / np.square(audio).sum()
    assert error < (1e-8 if suffix in ("wav", "flac") else 1e-2)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_samples_are_rounded_to_16_bits_and_clipped_beyond_full_scale(tmp_path, suffix):
    audio = np.append(tone(), np.array([-7.0, -1.0, 0.0, 1.0, 7.0], np.float32))
    write(tmp_path / f"tone.{suffix}", audio, RATE)
    stored, _ = soundfile.read(tmp_path / f"tone.{suffix}", dtype="int16")
    np.testing.assert_array_equal(stored, np.rint(np.clip(audio, -1, 1) * 32767).astype(np.int16))


def test_long_ogg_files_are_written_whole(tmp_path):
    audio = np.random.default_rng(0).uniform(-0.1, 0.1, 24000 * 60).astype(np.float32)
    write(tmp_path / "long.ogg", audio, 24000)
    assert len(read_clip(tmp_path / "long.ogg")[0]) == len(audio)


def test_an_unknown_suffix_is_refused_with_a_list_of_the_known_ones(tmp_path):
    assert_refused(
        r"\.wav, \.flac, \.mp3, \.ogg, \.aiff, \.aif, \.m4a, \.m4b, \.opus, \.aac",
        lambda: write(tmp_path / "speech.wma", tone(), RATE),
    )


def test_a_full_device_is_reported_and_a_format_that_needs_a_file_is_refused(tmp_path):
    (tmp_path / "full.wav").symlink_to("/dev/full")
    assert_refused(r"cannot write to .*full\.wav: No space left", lambda: write(tmp_path / "full.wav", tone(), RATE))
    os.mkfifo(tmp_path / "pipe.aiff")
    for refuse in (check_output, lambda path: write(path, tone(), RATE)):
        assert_refused(
            r"pipe\.aiff: it is a device or a pipe, and \.aiff needs a file",
            lambda refuse=refuse: refuse(tmp_path / "pipe.aiff"),
        )


@pytest.mark.parametrize(
    ("name", "audio", "rate", "fault"),
    [("speech.mp3", tone(), 12345, "12345 Hz"), ("speech.wav", np.array([0.0, np.nan], np.float32), RATE, "NaN")],
)
def test_a_rate_that_the_format_lacks_and_nan_are_refused_and_no_file_is_left(tmp_path, name, audio, rate, fault):
    assert_refused(fault, lambda: write(tmp_path / name, audio, rate))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_encoder_of_ffmpeg_takes_nan_or_infinite_samples(tmp_path, suffix, value):
    audio = np.append(tone(), value).astype(np.float32)
    with (
        pytest.raises(UserError, match="NaN or infinite"),
        writing(tmp_path / f"speech{suffix}", RATE, {"title": "A"}) as feed,
    ):
        feed(audio)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
def test_a_file_written_in_pieces_equals_one_written_at_once(tmp_path, suffix):
    audio = tone(3.0)
    write(tmp_path / f"once.{suffix}", audio, RATE)
    with writing(tmp_path / f"pieces.{suffix}", RATE) as feed:
        for start in range(0, len(audio), 7001):
            feed(audio[start : start + 7001])
            assert not (tmp_path / f"pieces.{suffix}").exists()
    once, pieces = (read_audio(tmp_path / f"{name}.{suffix}")[0] for name in ("once", "pieces"))
    assert len(pieces) == len(once)
    np.testing.assert_allclose(pieces, once, atol=0.02 if suffix == "ogg" else 0)  # Vorbis looks ahead within each part


@pytest.mark.parametrize("error", [KeyboardInterrupt("half"), UserError("half"), BrokenPipeError("half")], ids=repr)
@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_an_error_between_pieces_leaves_the_old_file_and_no_temporary_files(tmp_path, suffix, error):
    path = tmp_path / f"speech.{suffix}"
    write(path, tone(0.1), RATE)
    before = path.read_bytes()

    def write_half() -> None:
        with writing(path, RATE) as append:
            append(tone(1.0))
            raise error

    with pytest.raises(type(error), match="half"):
        write_half()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def read_within(pipe: BinaryIO, size: int, seconds: float = 30.0) -> bytes:
    """Read ``size`` bytes from a pipe; fewer when they do not arrive in time."""
    os.set_blocking(pipe.fileno(), False)
    deadline, content = time.monotonic() + seconds, b""
    while len(content) < size and time.monotonic() < deadline:
        content += pipe.read(size - len(content)) or b""
        time.sleep(0.005)
    os.set_blocking(pipe.fileno(), True)
    return content


def test_standard_output_receives_a_wav_piece_by_piece(tmp_path):
    """The first piece arrives before the second is written; the header leaves the length open."""
    code = (
        "import sys, numpy as np; from ane.audio import writing\n"
        "with writing('-', 24000) as feed:\n"
        "    feed(np.full(1000, 0.5, np.float32)); sys.stdin.readline(); feed(np.full(500, -0.5, np.float32))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        first = read_within(process.stdout, 44 + 2000)
        rest, _ = process.communicate(b"\n", timeout=60)
    assert len(first) == 44 + 2000
    assert process.returncode == 0
    (tmp_path / "out.wav").write_bytes(first + rest)
    audio, rate = soundfile.read(tmp_path / "out.wav", dtype="float32")
    assert rate == 24000
    np.testing.assert_allclose(audio, np.repeat([0.5, -0.5], [1000, 500]), atol=1e-4)


def test_a_closed_pipe_ends_the_writing_with_one_line():
    code = (
        "import numpy as np; from ane.audio import writing; from ane.system.errors import UserError\n"
        "try:\n"
        "    with writing('-', 24000) as feed:\n"
        "        while True: feed(np.zeros(100000, np.float32))\n"
        "except UserError as error: raise SystemExit(str(error))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(100)
        process.stdout.close()
        message = process.stderr.read().decode()
    assert message == "cannot write to standard output: Broken pipe\n"


def test_sound_is_not_written_to_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert_refused("terminal", check_output, "-")


def test_a_full_disk_leaves_the_old_file_and_no_temporary_files(tmp_path):
    """The limit on file sizes stands in for the disk."""
    paths = [tmp_path / f"speech.{suffix}" for suffix in ("wav", "flac", "mp3", "ogg")]
    for path in paths:
        write(path, tone(0.1), RATE)
    before = [path.read_bytes() for path in paths]
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from ane.audio import write; from ane.system.errors import UserError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "noise = np.random.default_rng(0).uniform(-1, 1, 48000).astype(np.float32)\n"
        "for path in sys.argv[1:]:\n"
        "    try: write(path, noise, 24000)\n"
        "    except UserError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-B", "-c", code, *paths], capture_output=True, text=True, check=False)
    for line, path in zip(result.stdout.splitlines(), paths, strict=True):
        assert line.startswith(f"cannot write {path}")
    assert result.stderr == ""
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


@pytest.mark.parametrize("write_to", [lambda path: write(path, tone(), RATE), check_output])
def test_a_tilde_is_the_users_home(tmp_path, monkeypatch, write_to):
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    write_to("~/x.wav")
    assert list((tmp_path / "here").iterdir()) == []
    assert (tmp_path / "home" / "x.wav").exists() == (write_to is not check_output)
