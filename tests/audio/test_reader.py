"""Test that sound files are read, and that one line rejects files that cannot be used."""

import errno
import os
import re
import struct
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from ane.audio import check_clip, read_clip, resample, write
from ane.audio.reader import MAX_CLIP_SECONDS, MAX_RATE, MIN_RATE, read_audio, read_recording
from ane.system.errors import UserError
from tests.audio.recording_device import RATE, tone
from tests.refusals import assert_refused


def refusal(path: Path) -> str:
    """The message with which ``read_clip`` refuses a file: one line that names it."""
    return assert_refused(re.escape(str(path)), read_clip, path)


def test_stereo_is_averaged(tmp_path):
    left, right = tone(), np.roll(tone(peak=0.2), 17)
    soundfile.write(tmp_path / "stereo.wav", np.stack([left, right], axis=1), RATE, "FLOAT")
    audio, _ = read_clip(tmp_path / "stereo.wav")
    np.testing.assert_allclose(audio, (left + right) / 2, atol=1e-7)


def test_the_format_is_detected_by_content_not_by_name(tmp_path):
    write(tmp_path / "tone.flac", tone(), RATE)
    os.rename(tmp_path / "tone.flac", tmp_path / "tone.wav")
    assert len(read_clip(tmp_path / "tone.wav")[0]) == RATE


def with_peak(peak: float) -> np.ndarray:
    audio = tone()
    audio[1000] = peak
    return audio


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"It was a dark and stormy night.\n" * 100, "convert it"),
        (tone(peak=0.00098), "silent"),
        (np.full(RATE, 0.4, np.float32), "silent"),  # a constant has only -60.2 dBFS
        (tone() * 32768, "between -1 and 1"),
        *((with_peak(value), "NaN or infinite") for value in (np.nan, np.inf)),
        *((tone()[:samples], f"lasts {samples / RATE:.3f} s") for samples in (1, RATE // 2 - 1)),
    ],
)
def test_what_is_no_clip_is_refused(tmp_path, content, fault):
    if isinstance(content, bytes):
        (tmp_path / "clip.wav").write_bytes(content)
    elif content is not None:
        soundfile.write(tmp_path / "clip.wav", content, RATE, "FLOAT")
    assert fault in refusal(tmp_path / "clip.wav")
    assert "is not a file" in refusal(tmp_path)


@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_a_sound_file_of_no_samples_is_refused(tmp_path, suffix):
    soundfile.write(tmp_path / f"none.{suffix}", np.empty(0), RATE)
    assert "no samples" in refusal(tmp_path / f"none.{suffix}")


def test_a_file_without_permission_is_refused_with_the_reason(tmp_path, monkeypatch):
    write(tmp_path / "secret.wav", tone(), RATE)
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(
        Path, "open", MagicMock(side_effect=denied)
    )  # removing the permission would not stop a superuser
    assert "Permission denied" in refusal(tmp_path / "secret.wav")


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg", "aiff", "rf64", "caf"])
def test_a_file_that_was_cut_off_is_refused(tmp_path, suffix):
    whole = tmp_path / f"whole.{suffix}"
    audio = tone(3.0) + np.random.default_rng(0).normal(0, 0.02, 3 * RATE).astype(np.float32)
    soundfile.write(whole, audio, RATE, format=suffix.upper())
    assert len(read_clip(whole)[0]) == len(audio)
    size = whole.stat().st_size
    for kept in (int(size * 0.1), int(size * 0.5), int(size * 0.9), *([30] if suffix == "rf64" else [])):
        cut = tmp_path / f"cut.{suffix}"  # the first 30 bytes of an RF64 file end within its sizes
        cut.write_bytes(whole.read_bytes()[:kept])
        assert "cut off" in refusal(cut)


@given(missing=st.integers(1, 43))
def test_a_wav_that_lacks_bytes_at_its_end_is_refused(tmp_path_factory, missing):
    path = tmp_path_factory.mktemp("cut") / "cut.wav"
    write(path, tone(), RATE)
    path.write_bytes(path.read_bytes()[:-missing])
    assert f"ends {missing} bytes earlier" in refusal(path)


def test_a_streamed_wav_that_does_not_state_its_length_is_read(tmp_path):
    write(tmp_path / "pipe.wav", tone(), RATE)
    content = bytearray((tmp_path / "pipe.wav").read_bytes())
    start = content.index(b"data") + 4
    content[4:8] = content[start : start + 4] = b"\xff\xff\xff\xff"  # the sizes that ffmpeg writes to a pipe
    (tmp_path / "pipe.wav").write_bytes(content)
    assert len(read_clip(tmp_path / "pipe.wav")[0]) == RATE


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("magic", ["RIFF", "RIFX"])
def test_a_wav_of_a_recorder_that_was_killed_is_read_up_to_its_end(tmp_path, subtype, magic):
    """Its header states the sizes with which it began."""
    soundfile.write(tmp_path / "whole.wav", tone(), RATE, subtype, "BIG" if magic == "RIFX" else "LITTLE")
    data = bytearray((tmp_path / "whole.wav").read_bytes())
    at = data.index(b"data") + 4
    data[4:8] = struct.pack(">I" if magic == "RIFX" else "<I", at - 4)
    data[at : at + 4] = bytes(4)
    for cut in (0, 3):
        (tmp_path / "killed.wav").write_bytes(data[: len(data) - cut])
        audio, rate = read_clip(tmp_path / "killed.wav")
        assert (len(audio), rate) == (RATE - -(-cut // (2 if subtype == "PCM_16" else 4)), RATE)
        np.testing.assert_array_equal(audio, read_clip(tmp_path / "whole.wav")[0][: len(audio)])


KILLED = """
import os, sys, numpy, soundfile
file = soundfile.SoundFile(sys.argv[1], "w", int(sys.argv[2]), 1, sys.argv[3], format="AIFF")
file.write(numpy.load(sys.argv[4]))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_an_aiff_of_a_recorder_that_was_killed_is_read_up_to_its_end(tmp_path, subtype):
    np.save(tmp_path / "tone.npy", tone())
    soundfile.write(tmp_path / "whole.aiff", tone(), RATE, subtype)
    subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "killed.aiff", str(RATE), subtype, tmp_path / "tone.npy"], check=False
    )
    np.testing.assert_array_equal(read_clip(tmp_path / "killed.aiff")[0], read_clip(tmp_path / "whole.aiff")[0])
    empty = bytearray((tmp_path / "whole.aiff").read_bytes())  # a file without samples, but with chunks after them
    at = empty.index(b"SSND") + 16
    empty[at - 12 : at - 8] = struct.pack(">I", 8)
    empty[at:] = struct.pack(">4sI", b"ANNO", 4000) + bytes(4000)
    empty[4:8] = struct.pack(">I", len(empty) - 8)
    (tmp_path / "empty.aiff").write_bytes(empty)
    assert "has no samples" in refusal(tmp_path / "empty.aiff")


def streamed_flac(samples: int) -> bytes:
    """As the server sends it while it is made: the header states no length."""
    encoders = pytest.importorskip("ane.server.encoders", reason="needs PyAV: pip install '.[server]'")
    encoder = encoders.make_encoder("flac", RATE)
    return encoder.feed(np.resize(tone(), samples)) + encoder.finish()


@pytest.mark.parametrize("samples", [RATE, 4608, 4609, 20 * RATE, 200 * RATE])
def test_a_flac_that_does_not_state_its_length_is_read_up_to_its_end(tmp_path, samples):
    (tmp_path / "streamed.flac").write_bytes(data := streamed_flac(samples))
    audio, rate = read_recording(tmp_path / "streamed.flac")
    assert (len(audio), rate) == (samples, RATE)
    np.testing.assert_allclose(audio, np.resize(tone(), samples), atol=1e-4)
    (tmp_path / "cut.flac").write_bytes(data[:-20])
    # at most two frames of FLAC are lost
    assert 0 <= samples - len(read_recording(tmp_path / "cut.flac")[0]) <= 2 * 4608
    (tmp_path / "none.flac").write_bytes(data[:100])
    assert "cut off" in refusal(tmp_path / "none.flac")


@pytest.mark.parametrize(("suffix", "form"), [(".aac", "adts"), (".avi", "avi"), (".mp4", "mp4"), (".webm", "webm")])
@pytest.mark.parametrize("opposite", [False, True])
def test_containers_are_read_by_ffmpeg(tmp_path, caplog, suffix, form, opposite):
    av = pytest.importorskip("av", reason="needs PyAV: pip install '.[books]'")
    channels = np.stack([tone(), -tone() if opposite else tone()])
    with av.open(str(tmp_path / f"clip{suffix}"), "w", format=form) as container:
        stream = container.add_stream("libopus" if form == "webm" else "aac", rate=48000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(channels.astype(np.float32), "fltp", "stereo")
        frame.sample_rate = RATE
        container.mux(
            [
                packet
                for part in av.AudioResampler(stream.format, "stereo", 48000, 960).resample(frame)
                for packet in stream.encode(part)
            ]
        )
        container.mux(stream.encode(None))
    audio, rate = read_recording(tmp_path / f"clip{suffix}")
    assert (rate, len(audio)) == (48000, pytest.approx(48000, rel=0.1))
    assert np.abs(audio).max() == pytest.approx(np.abs(tone()).max(), rel=0.1)
    assert ("cancel each other" in caplog.text) == opposite


@pytest.mark.parametrize("gain", [-1.0, -0.85])
def test_channels_of_opposite_signs_are_noticed_and_the_first_is_taken(tmp_path, caplog, gain):
    soundfile.write(tmp_path / "stereo.wav", np.stack([tone(), gain * tone()], axis=1), RATE, "FLOAT")
    audio, _ = read_clip(tmp_path / "stereo.wav")
    np.testing.assert_array_equal(audio, tone())
    assert "stereo.wav: its channels have opposite signs" in caplog.text


def test_chunks_before_and_after_the_sound_do_not_matter(tmp_path):
    write(tmp_path / "tagged.wav", tone(), RATE)
    content = (tmp_path / "tagged.wav").read_bytes()
    start = content.index(b"data")
    odd = b"LIST" + (5).to_bytes(4, "little") + b"INFOx\0"  # the chunk is padded to an even length
    tagged = content[:start] + odd + content[start:] + odd
    tagged = tagged[:4] + (len(tagged) - 8).to_bytes(4, "little") + tagged[8:]
    (tmp_path / "tagged.wav").write_bytes(tagged)
    assert len(read_clip(tmp_path / "tagged.wav")[0]) == RATE
    (tmp_path / "tagged.wav").write_bytes(tagged[: -len(odd) - 100])
    assert "ends 100 bytes earlier" in refusal(tmp_path / "tagged.wav")


@pytest.mark.parametrize(
    ("audio", "rate", "fault"),
    [
        (tone(0.499, 48000), 48000, r"lasts 0\.499 s"),
        (tone(0.5, 48000), 48000, None),
        *((with_peak(peak), RATE, None) for peak in (2.0, -2.0)),
        *((with_peak(peak), RATE, "between -1 and 1") for peak in (2.0001, -2.0001)),
        *((tone(), rate, "sample rate") for rate in (1, MIN_RATE - 1, MAX_RATE + 1)),
        (np.zeros(round(MAX_CLIP_SECONDS * 4000) + 1, np.float32), 4000, "10 minutes"),
    ],
)
def test_a_clip_needs_half_a_second_and_may_reach_a_peak_of_two(audio, rate, fault):
    with pytest.raises(UserError, match=fault) if fault else nullcontext():
        check_clip(audio, rate, "upload")


def with_rate(path: Path, rate: int) -> Path:
    """State another rate in the header of a wav."""
    content = bytearray(path.read_bytes())
    struct.pack_into("<II", content, 24, rate, 2 * rate)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("rate", [1, MIN_RATE - 1, MAX_RATE + 1, 2_000_000_000])
def test_a_header_with_an_absurd_rate_is_refused(tmp_path, rate):
    write(tmp_path / "rate.wav", tone(), RATE)
    assert f"a sample rate of {rate} Hz" in refusal(with_rate(tmp_path / "rate.wav", rate))


@pytest.mark.parametrize("rate", [MIN_RATE, MAX_RATE])
def test_the_lowest_and_the_highest_rate_are_read(tmp_path, rate):
    write(tmp_path / "rate.wav", np.resize(tone(), rate), RATE)
    assert read_clip(with_rate(tmp_path / "rate.wav", rate))[1] == rate


def test_a_recording_may_be_longer_than_a_clip_or_empty(tmp_path):
    soundfile.write(tmp_path / "long.flac", np.zeros(int(MAX_CLIP_SECONDS + 1) * 8000), 8000)
    audio, rate = read_recording(tmp_path / "long.flac")
    assert len(audio) / rate == MAX_CLIP_SECONDS + 1
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 8000)
    assert len(read_recording(tmp_path / "empty.wav")[0]) == 0


def test_a_recording_of_more_than_a_day_or_with_infinite_samples_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("ane.audio.reader.MAX_RECORDING_SECONDS", 1.0)
    soundfile.write(tmp_path / "long.wav", np.zeros(8001), 8000)
    assert_refused(r"cut it to at most 0 minutes$", lambda: read_recording(tmp_path / "long.wav"))
    soundfile.write(tmp_path / "inf.wav", np.full(10, np.inf), 8000, subtype="FLOAT")
    assert_refused(r"inf\.wav: has NaN or infinite samples", lambda: read_recording(tmp_path / "inf.wav"))


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_clip_beyond_ten_minutes_is_refused(tmp_path, suffix):
    samples = round(MAX_CLIP_SECONDS * 4000)
    soundfile.write(tmp_path / f"long.{suffix}", np.resize(tone(1.0, 4000), samples), 4000)
    assert len(read_clip(tmp_path / f"long.{suffix}")[0]) == samples
    soundfile.write(tmp_path / f"long.{suffix}", np.resize(tone(1.0, 4000), samples + 1), 4000)
    assert "cut it to at most 10 minutes, or best 6 to 10 s" in refusal(tmp_path / f"long.{suffix}")


def test_a_file_of_gigabytes_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "giant.wav"
    write(path, tone(), RATE)
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"  # an unknown length, as in a stream
    path.write_bytes(content)
    with path.open("r+b") as file:
        file.truncate(10 << 30)  # sparse
    code = (
        "import resource, sys; from ane.audio import read_audio; from ane.system.errors import UserError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try: read_audio(sys.argv[1])\n"
        "except UserError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=False)
    assert "cut it to at most 10 minutes" in result.stdout, result.stderr


def test_a_path_may_begin_with_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write("~/tone.wav", tone(), RATE)
    assert len(read_clip("~/tone.wav")[0]) == RATE


@given(
    source=st.sampled_from([8000, 11025, 16000, 22050, 44100, 48000, 96000]),
    target=st.sampled_from([16000, 22050, 24000]),
    seconds=st.floats(0.5, 1.5),
)
def test_resampling_keeps_the_duration_and_the_tone(source, target, seconds):
    audio = resample(tone(seconds, source), source, target)
    assert audio.dtype == np.float32
    assert abs(len(audio) - round(seconds * source) * target / source) <= 1
    middle = slice(target // 10, len(audio) - target // 10)
    np.testing.assert_allclose(audio[middle], tone(seconds + 0.1, target)[: len(audio)][middle], atol=2e-4)


def test_resampling_clips_to_full_scale():
    assert np.abs(resample(tone(peak=1.5), RATE, 24000)).max() == 1.0
    np.testing.assert_array_equal(resample(tone(peak=1.5), RATE, RATE), np.clip(tone(peak=1.5), -1, 1))


def test_a_damaged_mp3_prints_nothing_of_its_decoder(tmp_path, capfd):
    path = tmp_path / "talk.mp3"
    soundfile.write(path, 0.5 * np.sin(np.arange(48_000, dtype=np.float32) / 20), 24_000)
    data = bytearray(path.read_bytes())
    for position in range(200, len(data), 97):
        data[position] ^= 0x5A
    capfd.readouterr()
    comment = b"COMM\x00\x00\x00\x05\x00\x00\x09abcd"  # a text encoding that does not exist
    path.write_bytes(b"ID3\x03\x00\x00\x00\x00\x10\x00" + comment.ljust(2048, b"\0") + data)
    with suppress(UserError):
        read_audio(path)
    assert capfd.readouterr().err == ""


def test_a_warning_about_a_recording_is_not_hidden_with_what_its_decoder_prints(tmp_path):
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([tone(), -tone()], 1), RATE, "FLOAT")
    script = (
        f"import logging\nlogging.basicConfig()\nfrom ane.audio.reader import read_audio\nread_audio({str(path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "its channels have opposite signs" in done.stderr
