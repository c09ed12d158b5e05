"""Reading clips, refusing unfit ones, resampling, writing and playing."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from ane.audio.files import check_clip, check_output, play, read_audio, read_clip, resample, write, writing
from ane.system.errors import UserError

RATE = 22050


def tone(seconds: float = 1.0, rate: int = RATE, peak: float = 0.5) -> np.ndarray:
    return (peak * np.sin(2 * np.pi * 220 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def refusal(path: Path) -> str:
    """The message with which ``read_clip`` refuses a file: one line that names it."""
    with pytest.raises(UserError) as caught:
        read_clip(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


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
def test_written_samples_are_rounded_to_16_bits_not_truncated(tmp_path, suffix):
    audio = tone()
    write(tmp_path / f"tone.{suffix}", audio, RATE)
    stored, _ = soundfile.read(tmp_path / f"tone.{suffix}", dtype="int16")
    np.testing.assert_array_equal(stored, np.rint(audio * 32767).astype(np.int16))


def test_samples_beyond_full_scale_are_clipped_when_written(tmp_path):
    write(tmp_path / "loud.wav", np.array([-7.0, -1.0, 0.0, 1.0, 7.0], np.float32), RATE)
    stored, _ = soundfile.read(tmp_path / "loud.wav", dtype="int16")
    assert stored.tolist() == [-32767, -32767, 0, 32767, 32767]


@pytest.mark.parametrize(("subtype", "bits"), [("PCM_U8", 8), ("PCM_16", 16), ("PCM_24", 24), ("PCM_32", 32)])
def test_integer_samples_are_divided_by_their_full_scale(tmp_path, subtype, bits):
    soundfile.write(tmp_path / "half.wav", np.full(RATE, 0.5), RATE, subtype)
    audio, _ = read_audio(tmp_path / "half.wav")
    np.testing.assert_allclose(audio, 0.5, atol=2.0 ** (1 - bits))


def test_stereo_is_averaged(tmp_path):
    left, right = tone(), np.roll(tone(peak=0.2), 17)
    soundfile.write(tmp_path / "stereo.wav", np.stack([left, right], axis=1), RATE, "FLOAT")
    audio, _ = read_clip(tmp_path / "stereo.wav")
    np.testing.assert_allclose(audio, (left + right) / 2, atol=1e-7)


def test_the_format_is_told_by_content_not_by_name(tmp_path):
    write(tmp_path / "tone.flac", tone(), RATE)
    os.rename(tmp_path / "tone.flac", tmp_path / "tone.wav")
    assert len(read_clip(tmp_path / "tone.wav")[0]) == RATE


def test_long_ogg_files_are_written_whole(tmp_path):
    audio = np.random.default_rng(0).uniform(-0.1, 0.1, 24000 * 60).astype(np.float32)
    write(tmp_path / "long.ogg", audio, 24000)
    assert len(read_clip(tmp_path / "long.ogg")[0]) == len(audio)


def test_a_missing_file_is_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "nope.wav")


def test_a_directory_is_refused(tmp_path):
    assert "is not a file" in refusal(tmp_path)


def test_a_file_of_no_bytes_is_refused(tmp_path):
    (tmp_path / "empty.wav").touch()
    assert "empty" in refusal(tmp_path / "empty.wav")


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_a_sound_file_of_no_samples_is_refused(tmp_path, suffix):
    soundfile.write(tmp_path / f"none.{suffix}", np.empty(0), RATE)
    assert "no samples" in refusal(tmp_path / f"none.{suffix}")


def test_text_that_poses_as_sound_is_refused(tmp_path):
    (tmp_path / "text.wav").write_text("It was a dark and stormy night.\n" * 100)
    assert "convert it" in refusal(tmp_path / "text.wav")


def test_silence_is_refused(tmp_path):
    write(tmp_path / "silent.wav", tone(peak=0.0009), RATE)
    assert "silent" in refusal(tmp_path / "silent.wav")
    write(tmp_path / "quiet.wav", tone(peak=0.002), RATE)
    read_clip(tmp_path / "quiet.wav")


def test_a_constant_is_silence(tmp_path):
    write(tmp_path / "offset.wav", np.full(RATE, 0.4, np.float32), RATE)
    assert "silent" in refusal(tmp_path / "offset.wav")


@pytest.mark.parametrize("samples", [1, 3, RATE // 2 - 1])
def test_a_clip_below_half_a_second_is_refused_with_its_length(tmp_path, samples):
    write(tmp_path / "short.wav", tone()[:samples], RATE)
    assert f"lasts {samples / RATE:.3f} s" in refusal(tmp_path / "short.wav")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_numbers_are_refused(tmp_path, value):
    audio = tone()
    audio[1000] = value
    soundfile.write(tmp_path / "bad.wav", audio, RATE, "FLOAT")
    assert "NaN or infinite" in refusal(tmp_path / "bad.wav")


def test_floats_on_an_integer_scale_are_refused(tmp_path):
    soundfile.write(tmp_path / "scale.wav", tone() * 32768, RATE, "FLOAT")
    assert "between -1 and 1" in refusal(tmp_path / "scale.wav")


def test_a_file_the_system_will_not_open_is_refused_with_its_reason(tmp_path, monkeypatch):
    def deny(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    write(tmp_path / "secret.wav", tone(), RATE)
    monkeypatch.setattr(Path, "open", deny)     # taking the permission away would not stop a superuser
    assert "Permission denied" in refusal(tmp_path / "secret.wav")


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg", "aiff", "rf64", "caf"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_refused(tmp_path, suffix, share):
    whole = tmp_path / f"whole.{suffix}"
    audio = tone(3.0) + np.random.default_rng(0).normal(0, 0.02, 3 * RATE).astype(np.float32)
    soundfile.write(whole, audio, RATE, format=suffix.upper())
    assert len(read_clip(whole)[0]) == len(audio)
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(whole.read_bytes()[:int(whole.stat().st_size * share)])
    assert "cut off" in refusal(cut)


@given(missing=st.integers(1, 43))
def test_not_one_byte_may_miss_at_the_end_of_a_wav(tmp_path_factory, missing):
    path = tmp_path_factory.mktemp("cut") / "cut.wav"
    write(path, tone(), RATE)
    path.write_bytes(path.read_bytes()[:-missing])
    assert f"ends {missing} bytes before" in refusal(path)


def test_a_streamed_wav_that_does_not_state_its_length_is_read(tmp_path):
    write(tmp_path / "pipe.wav", tone(), RATE)
    content = bytearray((tmp_path / "pipe.wav").read_bytes())
    start = content.index(b"data") + 4
    content[4:8] = content[start:start + 4] = b"\xff\xff\xff\xff"       # as ffmpeg writes into a pipe
    (tmp_path / "pipe.wav").write_bytes(content)
    assert len(read_clip(tmp_path / "pipe.wav")[0]) == RATE


def test_chunks_before_and_after_the_sound_do_not_matter(tmp_path):
    write(tmp_path / "tagged.wav", tone(), RATE)
    content = (tmp_path / "tagged.wav").read_bytes()
    start = content.index(b"data")
    odd = b"LIST" + (5).to_bytes(4, "little") + b"INFOx\0"      # padded to an even length
    tagged = content[:start] + odd + content[start:] + odd
    tagged = tagged[:4] + (len(tagged) - 8).to_bytes(4, "little") + tagged[8:]
    (tmp_path / "tagged.wav").write_bytes(tagged)
    assert len(read_clip(tmp_path / "tagged.wav")[0]) == RATE
    (tmp_path / "tagged.wav").write_bytes(tagged[:-len(odd) - 100])
    assert "ends 100 bytes before" in refusal(tmp_path / "tagged.wav")


@given(source=st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000, 96000]),
       target=st.sampled_from([16000, 22050, 24000]), seconds=st.floats(0.5, 1.5))
def test_resampling_keeps_the_duration_and_the_tone(source, target, seconds):
    audio = resample(tone(seconds, source), source, target)
    assert audio.dtype == np.float32
    assert abs(len(audio) - round(seconds * source) * target / source) <= 1
    middle = slice(target // 10, len(audio) - target // 10)
    np.testing.assert_allclose(audio[middle], tone(seconds + 0.1, target)[:len(audio)][middle], atol=2e-4)


def test_resampling_clips_to_full_scale():
    assert np.abs(resample(tone(peak=1.5), RATE, 24000)).max() == 1.0
    np.testing.assert_array_equal(resample(tone(peak=1.5), RATE, RATE), np.clip(tone(peak=1.5), -1, 1))


def test_an_unknown_suffix_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UserError, match=r"\.wav, \.flac, \.mp3, \.ogg"):
        write(tmp_path / "speech.m4a", tone(), RATE)


@pytest.mark.parametrize("name", ["speech.m4a", "speech", "folder.wav", "file/speech.wav"])
def test_an_output_that_cannot_be_written_is_refused_beforehand(tmp_path, name):
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"^cannot write {tmp_path / name}: "):
        check_output(tmp_path / name)


def test_an_output_in_folders_still_to_be_made_is_accepted(tmp_path):
    check_output(tmp_path / "new" / "folders" / "speech.wav")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "new" / "folders" / "speech.wav", tone(), RATE)


def test_a_rate_the_format_lacks_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(UserError, match="12345 Hz"):
        write(tmp_path / "speech.mp3", tone(), 12345)
    assert list(tmp_path.iterdir()) == []


def test_audio_with_nan_is_not_written(tmp_path):
    with pytest.raises(UserError, match="NaN"):
        write(tmp_path / "speech.wav", np.array([0.0, np.nan], np.float32), RATE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
def test_a_file_written_piece_by_piece_is_the_one_that_is_written_at_once(tmp_path, suffix):
    audio = tone(3.0)
    write(tmp_path / f"once.{suffix}", audio, RATE)
    with writing(tmp_path / f"pieces.{suffix}", RATE) as feed:
        for start in range(0, len(audio), 7001):
            feed(audio[start:start + 7001])
            assert not (tmp_path / f"pieces.{suffix}").exists()
    once, pieces = (read_audio(tmp_path / f"{name}.{suffix}")[0] for name in ("once", "pieces"))
    assert len(pieces) == len(once)
    np.testing.assert_allclose(pieces, once, atol=0.02 if suffix == "ogg" else 0)       # Vorbis looks ahead in a piece


@pytest.mark.parametrize("error", [KeyboardInterrupt("half"), UserError("half"), BrokenPipeError("half")], ids=repr)
@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_an_error_while_sound_comes_leaves_the_old_file_and_no_rubbish(tmp_path, suffix, error):
    path = tmp_path / f"speech.{suffix}"
    write(path, tone(0.1), RATE)
    before = path.read_bytes()

    def write_half() -> None:
        with writing(path, RATE) as feed:
            feed(tone(1.0))
            raise error

    with pytest.raises(type(error), match="half"):
        write_half()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_standard_output_is_given_a_wav_piece_by_piece(tmp_path):
    """The first piece is there before the second is made; the header leaves the length open."""
    code = ("import sys, numpy as np; from ane.audio.files import writing\n"
            "with writing('-', 24000) as feed:\n"
            "    feed(np.full(1000, 0.5, np.float32)); sys.stdin.readline(); feed(np.full(500, -0.5, np.float32))\n")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        first = process.stdout.read(44 + 2000)
        rest, _ = process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
    (tmp_path / "out.wav").write_bytes(first + rest)
    audio, rate = soundfile.read(tmp_path / "out.wav", dtype="float32")
    assert rate == 24000
    np.testing.assert_allclose(audio, np.repeat([0.5, -0.5], [1000, 500]), atol=1e-4)


def test_a_reader_of_standard_output_that_goes_away_ends_the_writing_with_one_line():
    code = ("import numpy as np; from ane.audio.files import writing; from ane.system.errors import UserError\n"
            "try:\n"
            "    with writing('-', 24000) as feed:\n"
            "        while True: feed(np.zeros(100000, np.float32))\n"
            "except UserError as error: raise SystemExit(str(error))\n")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(100)
        process.stdout.close()
        said = process.stderr.read().decode()
    assert said == "cannot write to standard output: Broken pipe\n"


def test_a_terminal_is_given_no_sound(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(UserError, match="terminal"):
        check_output("-")


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg"])
def test_a_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path, suffix):
    """The limit on file sizes stands in for the disk."""
    path = tmp_path / f"speech.{suffix}"
    write(path, tone(0.1), RATE)
    before = path.read_bytes()
    code = ("import resource, signal, numpy as np; from ane.system.errors import UserError; from ane.audio.files import write\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
            "noise = np.random.default_rng(0).uniform(-1, 1, 48000).astype(np.float32)\n"
            f"try: write({str(path)!r}, noise, 24000)\n"
            "except UserError as error: print(error)\n")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"cannot write {path}" in result.stdout, result.stderr
    assert result.stderr == ""
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_clip_in_memory_is_checked_like_a_file():
    with pytest.raises(UserError, match=r"upload 1: lasts 0\.100 s"):
        check_clip(tone(0.1), RATE, "upload 1")


def player(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport pathlib, sys\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_play_hands_a_wav_to_the_player_and_leaves_no_file(tmp_path, monkeypatch):
    player(tmp_path, "aplay", f"pathlib.Path({str(tmp_path / 'heard.wav')!r})"
                              ".write_bytes(pathlib.Path(sys.argv[-1]).read_bytes())\n"
                              f"pathlib.Path({str(tmp_path / 'name')!r}).write_text(sys.argv[-1])")
    monkeypatch.setenv("PATH", str(tmp_path))
    play(tone(), RATE)
    heard, rate = read_clip(tmp_path / "heard.wav")
    assert rate == RATE
    np.testing.assert_allclose(heard, tone(), atol=1e-4)
    assert not Path((tmp_path / "name").read_text()).exists()


def test_play_says_why_the_player_failed(tmp_path, monkeypatch):
    player(tmp_path, "ffplay", "sys.exit('no such audio device')")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"ffplay could not play .*no such audio device"):
        play(tone(), RATE)


def test_play_without_a_player_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="install"):
        play(tone(), RATE)


def test_reading_and_writing_do_not_load_torch():
    code = "import sys, ane.audio.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
