"""Test that bundles of earlier versions still open. Bundles of KittenTTS and Kokoro used to record fewer facts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ane
from ane.bundles import Bundle
from ane.bundles.hashes import identity_of, size_and_time
from ane.bundles.writing import write_bundle
from ane.system.errors import UserError
from tests.models.kitten.kitten_model import kitten_speaker

EARLIER = Path(__file__).parent / "earlier"
VOICES = {"kitty": ["Bella", "expr-voice-2-f", "expr-voice-5-m"], "koko": ["af_bella", "af_heart"]}


@pytest.mark.parametrize("name", VOICES)
def test_an_earlier_bundle_opens_with_its_voices_and_the_key_of_its_stored_sounds(name):
    bundle = Bundle(EARLIER / name)
    bundle.verify()
    assert (bundle.name, bundle.voice_names) == (name.title(), VOICES[name])
    assert bundle.takes_voices
    assert not bundle.uses_seed
    # by this identity, books that an earlier version began find their sounds
    assert bundle.identity == identity_of(
        [(file, *size_and_time(bundle.path / file)) for file in ("config.json", "model.onnx", "voices.npz")]
    )


def test_earlier_bundles_speak():
    speech = ane.load(EARLIER / "koko").speak("Hello there.", "af_bella")
    assert [word.word for word in speech.words] == ["Hello", "there."]
    assert not any(word.estimated for word in speech.words)
    speaker = kitten_speaker(EARLIER / "kitty")
    fast, slow = (len(speaker.speak("Hello.", voice).audio) for voice in ("expr-voice-5-m", "Bella"))
    assert fast == slow > 0, "this graph has a fixed number of samples for each letter"


@pytest.mark.parametrize("name", VOICES)
def test_an_earlier_bundle_written_again_states_everything_and_sounds_the_same(name, tmp_path):
    earlier = Bundle(EARLIER / name)
    again = write_bundle(earlier.contents(), tmp_path / name)
    content = json.loads((tmp_path / name / "bundle.json").read_text())
    assert {"precision", "trained", "networks", "voices", "files"} <= content.keys()
    assert again.voice_names == earlier.voice_names
    assert all(
        np.array_equal(again.file(role).read_bytes(), earlier.file(role).read_bytes())
        for role in ("config", "graph", "voices")
    )


@pytest.mark.parametrize(
    ("role", "message"), [("graph", "files: graph is missing"), (None, "files: config is missing")]
)
def test_an_earlier_bundle_without_a_file_is_refused(role, message, tmp_path):
    path = Path(shutil.copytree(EARLIER / "koko", tmp_path / "koko")) / "bundle.json"
    content = json.loads(path.read_text())
    if role:
        del content["files"][role]
    else:
        del content["files"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        Bundle(path.parent)
