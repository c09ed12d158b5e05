"""The fast embedded bundle: size, contents, and the sound of its voice."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ane
from ane.bundles import demo_bundle
from ane.bundles.bundle import Bundle
from ane.models.hibari.synthesizer import HibariSynthesizer
from ane.models.vocoders.harmonic_noise import SAMPLE_RATE
from ane.system.errors import UserError
from benchmarks.listening import Wave

FOLDER = demo_bundle("demo-fast")
TEXT = "The children were playing in the park with their friends, and the sun was shining."


@pytest.fixture(scope="module")
def voice() -> HibariSynthesizer:
    return ane.load("demo-fast", "torch")


def test_the_bundle_has_at_most_10_megabytes_with_its_card_and_notice():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert {"MODEL.md", "NOTICE"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= 10_000_000


def test_its_origin_is_stated():
    manifest = json.loads((FOLDER / "bundle.json").read_text(encoding="utf-8"))
    assert manifest["source"]["package"] == "hibari-tts 0.2.1"
    texts = [manifest["description"], *((FOLDER / name).read_text(encoding="utf-8") for name in ("MODEL.md", "NOTICE"))]
    assert all(name in text for text in texts for name in ("Kokoro-82M", "Maureese Williams", "hexgrad"))
    assert manifest["licence"] == "Apache-2.0"


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_it_speaks_at_every_speed_without_clicks_or_long_silence(voice, speed):
    speech = voice.speak(TEXT, speed=speed)
    wave = Wave.of(speech.audio, SAMPLE_RATE)
    assert not speech.notes
    assert 150 < wave.f0 < 230
    assert wave.finite
    assert wave.clicks == 0
    assert np.abs(speech.audio[:200]).max() < 0.03      # no click at the start
    assert wave.silent_end <= 0.6 / min(speed, 1)
    assert wave.loudness == pytest.approx(-20, abs=2)


def test_int8_weights_are_expanded_and_one_without_a_scale_is_refused(tmp_path):
    stored = load_file(FOLDER / "weights" / "hibari.safetensors")
    key = "m.head.weight"
    assert stored[key].dtype == torch.int8
    assert torch.equal(Bundle(FOLDER).tensors("hibari")[key], stored[key].float() * stored[f"{key}.scale"])
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER, copy)
    del stored[f"{key}.scale"]
    save_file(stored, copy / "weights" / "hibari.safetensors")
    manifest = json.loads((copy / "bundle.json").read_text(encoding="utf-8"))
    manifest["networks"]["hibari"] |= record_of(copy / "weights" / "hibari.safetensors")
    (copy / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match="weights are F32, F16, BF16 or I8 with a scale"):
        Bundle(copy).tensors("hibari")


def record_of(path):
    import hashlib

    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
