"""Test the embedded bundles."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ane
from ane.bundles import demo_bundle
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of
from ane.models.hibari.synthesizer import HibariSynthesizer
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.settings import SAMPLE_RATE
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.models.tortoise.voices import encode_clips, random_voice
from ane.system.errors import UserError
from ane.voices import Voice, load_voice
from benchmarks.listening import Wave
from training.recipe import CONFIGS, SETTINGS, tokenizer_json

VOICES = ("heart", "michael")
TEXT = "The children were playing in the park with their friends, and the sun was shining."


@pytest.fixture(scope="module")
def synthesizer() -> TortoiseSpeaker:
    return ane.load("demo", keep=True)


@pytest.fixture(scope="module")
def embedded(synthesizer) -> dict[str, Voice]:
    return {name: load_voice(synthesizer.model.voices / f"{name}.safetensors", name) for name in VOICES}


def clean_wave(speech: ane.Speech) -> Wave:
    """What is measured of speech that has no note, no click and no sound at its start."""
    wave = Wave.of(speech.audio, SAMPLE_RATE)
    assert (speech.notes, wave.finite, wave.clicks) == ([], True, 0)
    assert np.abs(speech.audio[:240]).max() < 0.03
    return wave


def nearest(voices: dict[str, Voice], voice: Voice, latent: str) -> str:
    return min(voices, key=lambda name: np.linalg.norm(getattr(voices[name], latent) - getattr(voice, latent)))


def test_networks_settings_and_tokenizer_are_those_of_the_recipe(synthesizer):
    model = synthesizer.model
    assert model.networks == set(CONFIGS)
    measured = {name: getattr(UnifiedVoiceConfig, name) for name in UnifiedVoiceConfig.without_effect}
    for name, config in CONFIGS.items():  # the recipe lacks facts that are measured on the trained weights
        found = model.config(name)
        assert (replace(found, **measured) if name == "autoregressive" else found) == config
    assert model.settings == SETTINGS
    assert model.tokenizer == tokenizer_json()
    assert (model.trained, model.clones, model.precision, model.default_voice) == (True, False, "fp16", "heart")
    assert {path.stem for path in model.voices.glob("*")} == set(VOICES)


@pytest.mark.parametrize(
    ("voice", "pitch", "preset"),
    [
        ("heart", 190, "fastest"),
        ("heart", 190, "ultra_fast"),
        ("michael", 105, "fastest"),
        ("michael", 105, "1x10_guided"),
    ],
)
def test_each_voice_has_the_pitch_of_its_teacher_without_clicks_or_long_silence(synthesizer, voice, pitch, preset):
    """The pitches are the teachers' medians over the held-out sentences."""
    wave = clean_wave(synthesizer.speak(TEXT, voice, preset, seed=3))
    assert wave.f0 == pytest.approx(pitch, rel=0.15)
    assert wave.silent_end <= 0.3
    assert 3.0 < wave.seconds < 8.0


@pytest.mark.parametrize("name", VOICES)
def test_a_clip_of_a_voice_selects_that_voice(synthesizer, embedded, name):
    speech = synthesizer.speak(TEXT, name, "1x10", seed=1)
    voice = encode_clips(
        [(speech.audio, SAMPLE_RATE)], synthesizer.backend, synthesizer.model.mel_norms, np.random.default_rng(0)
    )
    assert nearest(embedded, voice, "ar") == name
    assert nearest(embedded, voice, "diffusion") == name


def test_random_voices_lie_between_the_two(synthesizer, embedded):
    for latent in ("ar", "diffusion"):
        start, end = (getattr(embedded[name], latent) for name in VOICES)
        fractions, distances = [], []
        for seed in range(12):
            voice = random_voice(synthesizer.backend, synthesizer.model.widths, np.random.default_rng(seed))
            fraction = ((getattr(voice, latent) - start) * (end - start)).sum() / ((end - start) ** 2).sum()
            fractions.append(fraction)
            distances.append(np.linalg.norm(getattr(voice, latent) - start - fraction * (end - start)))
        assert -0.4 < min(fractions) < 0.3
        assert 0.7 < max(fractions) < 1.4
        assert np.median(distances) < 0.35 * np.linalg.norm(end - start)


def test_speech_needs_no_network(tmp_path):
    blocked = (
        "import socket, sys\ndef refuse(*_, **__): raise OSError('no network')\n"
        "socket.socket.connect = refuse\nfrom ane.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", blocked, "say", "Hello there.", "-o", "hello.wav"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert (Path(tmp_path) / "hello.wav").stat().st_size > 20_000


FOLDER = demo_bundle("heart")


@pytest.fixture(scope="module")
def voice() -> HibariSynthesizer:
    return ane.load("heart", "torch")


@pytest.mark.parametrize(
    ("name", "megabytes", "papers"), [("demo", 20, {"MODEL.md"}), ("heart", 10, {"MODEL.md", "NOTICE"})]
)
def test_a_bundle_is_small_and_has_its_card_and_notice(name, megabytes, papers):
    files = [path for path in demo_bundle(name).rglob("*") if path.is_file()]
    assert papers <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= megabytes * 1_000_000


def test_its_origin_is_stated():
    manifest = json.loads((FOLDER / "bundle.json").read_text(encoding="utf-8"))
    assert manifest["source"]["package"] == "hibari-tts 0.2.1"
    texts = [manifest["description"], *((FOLDER / name).read_text(encoding="utf-8") for name in ("MODEL.md", "NOTICE"))]
    assert all(name in text for text in texts for name in ("Kokoro-82M", "Maureese Williams", "hexgrad"))
    assert manifest["licence"] == "Apache-2.0"


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_it_speaks_at_every_speed_without_clicks_or_long_silence(voice, speed):
    wave = clean_wave(voice.speak(TEXT, speed=speed))
    assert 150 < wave.f0 < 230
    assert wave.silent_end <= 0.6 / min(speed, 1)
    assert wave.loudness == pytest.approx(-20, abs=2)


def test_int8_weights_are_expanded_and_one_without_a_scale_is_refused(tmp_path):
    weights = "packages/hibari-int8.onnx/hibari.safetensors"
    stored = load_file(FOLDER / weights)
    key = "m.head.weight"
    assert stored[key].dtype == torch.int8
    assert torch.equal(Bundle(FOLDER).tensors("hibari")[key], stored[key].float() * stored[f"{key}.scale"])
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER, copy)
    del stored[f"{key}.scale"]
    save_file(stored, copy / weights)
    manifest, spoiled = (copy / "bundle.json").read_text(encoding="utf-8"), copy / weights
    for stated, now in (
        (sha256_of(FOLDER / weights), sha256_of(spoiled)),
        (str((FOLDER / weights).stat().st_size), str(spoiled.stat().st_size)),
    ):
        manifest = manifest.replace(stated, now)
    (copy / "bundle.json").write_text(manifest, encoding="utf-8")
    with pytest.raises(UserError, match="is I8, not F32, F16, BF16 or I8 with a scale"):
        Bundle(copy).tensors("hibari")
