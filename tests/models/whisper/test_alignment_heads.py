"""Where the heads that time words come from: generation_config.json, the name of a published file, or neither."""

import json

import pytest

from ane.bundles.bundle import Bundle, write_bundle
from ane.models.whisper.alignment_heads import PUBLISHED, alignment_heads, find_alignment_heads
from ane.models.whisper.checkpoints import WhisperCheckpoint
from ane.system.errors import UserError
from tests.models.whisper.random_whisper import write_hugging_face, write_openai

# layers and heads of the decoder
SIZES = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16), "large": (32, 20), "turbo": (4, 20)}


def test_every_published_head_is_one_of_its_decoder():
    for name, heads in PUBLISHED.items():
        size = SIZES["turbo" if "turbo" in name else name.partition("-")[0].partition(".")[0]]
        assert heads == tuple(sorted(set(heads))), name
        assert all(layer < size[0] and head < size[1] for layer, head in heads), name


def test_a_published_file_is_known_by_its_name(tmp_path):
    assert find_alignment_heads(tmp_path / "large-v3-turbo.pt", 4, 20) == PUBLISHED["turbo"]
    assert find_alignment_heads(tmp_path / "tuned.pt", 4, 20) == ()


def test_another_model_of_a_published_name_has_no_known_heads(tmp_path):
    assert find_alignment_heads(tmp_path / "tiny.pt", 2, 2) == ()
    model = WhisperCheckpoint(write_openai(tmp_path).rename(tmp_path / "tiny.pt"))
    assert model.config("decoder").alignment_heads == ()


def test_without_known_heads_those_of_the_upper_half_are_used():
    assert alignment_heads((), 3, 2) == ((1, 0), (1, 1), (2, 0), (2, 1))
    assert alignment_heads(((0, 1),), 3, 2) == ((0, 1),)


def test_a_bundle_keeps_the_heads_of_generation_config(tmp_path):
    folder = write_hugging_face(tmp_path / "source")
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": [[1, 0], [0, 1]]}))
    model = WhisperCheckpoint(folder)
    assert model.config("decoder").alignment_heads == ((1, 0), (0, 1))
    write_bundle(model, tmp_path / "bundle")
    assert Bundle(tmp_path / "bundle").config("decoder").alignment_heads == ((1, 0), (0, 1))


@pytest.mark.parametrize("heads", [[[2, 0]], [[0, 2]], [[0]], [[-1, 0]], [[0, True]], 3, ["00"]])
def test_heads_that_the_decoder_lacks_are_refused(tmp_path, heads):
    folder = write_hugging_face(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    with pytest.raises(UserError, match=r"generation_config.json: alignment_heads must be a list of \[layer, head\]"):
        WhisperCheckpoint(folder)
    with pytest.raises(UserError, match="alignment_heads must be"):
        write_damaged_bundle(tmp_path, heads)


def write_damaged_bundle(folder, heads) -> Bundle:
    (folder / "generation_config.json").unlink()
    write_bundle(WhisperCheckpoint(folder), folder / "bundle")
    path = folder / "bundle" / "bundle.json"
    content = json.loads(path.read_text())
    content["networks"]["decoder"]["config"]["alignment_heads"] = heads
    path.write_text(json.dumps(content))
    return Bundle(folder / "bundle")
