"""The bundle in the box: whole, small, and what its card says of its voices."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ane
from ane.bundles import demo_bundle
from ane.models.tortoise.result import SAMPLE_RATE
from ane.models.tortoise.synthesizer import Synthesizer
from ane.models.tortoise.voice_encoding import encode_clips, random_voice
from ane.voices import Voice, load_voice
from benchmarks.listening import Wave
from training.recipe import CONFIGS, SETTINGS, tokenizer_json

VOICES = ("rms", "slt")
TEXT = "The children were playing in the park with their friends, and the sun was shining."


@pytest.fixture(scope="module")
def synthesizer() -> Synthesizer:
    return ane.load(keep=True)


@pytest.fixture(scope="module")
def own(synthesizer) -> dict[str, Voice]:
    return {name: load_voice(synthesizer.model.voices / f"{name}.safetensors", name) for name in VOICES}


def nearest(own: dict[str, Voice], voice: Voice, part: str) -> str:
    return min(own, key=lambda name: np.linalg.norm(getattr(own[name], part) - getattr(voice, part)))


def test_it_fits_in_16_megabytes_with_its_card_and_pictures():
    files = [path for path in demo_bundle().rglob("*") if path.is_file()]
    assert {"MODEL.md", "curves.jpg", "spectrograms.jpg"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= 16_000_000


def test_it_is_what_the_recipe_makes(synthesizer):
    model = synthesizer.model
    assert model.networks == set(CONFIGS)
    assert all(model.config(name) == config for name, config in CONFIGS.items())
    assert model.settings == SETTINGS
    assert model.tokenizer == tokenizer_json()
    assert (model.trained, model.clones, model.precision, model.default_voice) == (True, False, "fp16", "rms")
    assert {path.stem for path in model.voices.glob("*")} == set(VOICES)


@pytest.mark.parametrize("preset", ["fastest", "1x10_guided", "ultra_fast"])
@pytest.mark.parametrize(("voice", "pitch"), [("rms", 103), ("slt", 173)])
def test_each_voice_has_its_teachers_pitch_and_no_faults(synthesizer, voice, pitch, preset):
    """The pitches are the teachers' medians over the held-out sentences."""
    speech = synthesizer.speak(TEXT, voice, preset, seed=3)
    wave = Wave.of(speech.audio, SAMPLE_RATE)
    assert not speech.notes
    assert wave.f0 == pytest.approx(pitch, rel=0.15)
    assert wave.finite
    assert wave.clicks == 0
    assert np.abs(speech.audio[:240]).max() < 0.03      # nor does it begin with a bang
    assert wave.silent_end <= 0.3
    assert 3.0 < wave.seconds < 8.0


@pytest.mark.parametrize("name", VOICES)
def test_a_clip_of_a_voice_picks_that_voice(synthesizer, own, name):
    speech = synthesizer.speak(TEXT, name, "ultra_fast", seed=1)
    voice = encode_clips([(speech.audio, SAMPLE_RATE)], synthesizer.backend, synthesizer.model.mel_norms,
                         np.random.default_rng(0))
    assert nearest(own, voice, "ar") == name
    assert nearest(own, voice, "diffusion") == name


def test_random_voices_lie_between_the_two(synthesizer, own):
    for part in ("ar", "diffusion"):
        start, end = (getattr(own[name], part) for name in VOICES)
        shares, off = [], []
        for seed in range(12):
            voice = random_voice(synthesizer.backend, synthesizer.model.widths, np.random.default_rng(seed))
            way = ((getattr(voice, part) - start) * (end - start)).sum() / ((end - start) ** 2).sum()
            shares.append(way)
            off.append(np.linalg.norm(getattr(voice, part) - start - way * (end - start)))
        assert -0.4 < min(shares) < 0.3
        assert 0.7 < max(shares) < 1.4
        assert np.median(off) < 0.35 * np.linalg.norm(end - start)


def test_a_user_without_a_network_hears_it_at_once(tmp_path):
    """The packages are installed; nothing else is asked for."""
    blocked = ("import socket, sys\ndef refuse(*_, **__): raise OSError('no network')\n"
               "socket.socket.connect = refuse\nfrom ane.cli import main\nsys.exit(main(sys.argv[1:]))")
    result = subprocess.run([sys.executable, "-c", blocked, "say", "Hello there.", "-o", "hello.wav"], cwd=tmp_path,
                            capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert (Path(tmp_path) / "hello.wav").stat().st_size > 20_000
