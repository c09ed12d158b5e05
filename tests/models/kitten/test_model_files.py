"""Test that one clear line reports every fault in folders, archives of voices, bundles and foreign files; and text."""

import io
import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ane.bundles.hub import Snapshot
from ane.bundles.writing import write_bundle
from ane.models.kitten import family
from ane.models.kitten.family import FAMILY, import_kitten, is_kitten_folder
from ane.models.kitten.published_text import MAX_WORD, preprocess, split_published
from ane.models.styletts import voices
from ane.models.styletts.voices import STYLE_WIDTH, read_tables
from ane.system.errors import UserError
from tests.edits import edit_json, flip
from tests.models.kitten.kitten_model import kitten_graph, kitten_speaker
from tests.refusals import assert_refused
from tests.tables import differences, rows


def configure(folder: Path, **values: Any) -> None:
    edit_json(folder / "config.json", lambda stated: stated.update(values))


def refused(folder: Path, message: str) -> None:
    assert_refused(message, kitten_speaker, folder)


@pytest.mark.parametrize("file", ["config.json", "model.onnx", "voices.npz"])
def test_a_missing_file_is_named(folder: Path, file: str) -> None:
    (folder / file).unlink()
    refused(folder, f"{file} is missing")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"type": "ONNX3"}, "its type is 'ONNX3', not ONNX1 or ONNX2"),
        ({"model_file": "../a.onnx"}, "model_file must"),
        ({"model_file": None}, "model_file must be the name of a file"),
        ({"voices": ""}, "voices must be the name"),
        ({"speed_priors": {"a": "b"}}, "speed_priors must map voices to numbers"),
        ({"speed_priors": {"a": 0}}, "got 0"),
        ({"voice_aliases": {"Bella": 1}}, "must map voices to names"),
        ({"voice_aliases": ["a"]}, "must map"),
        ({"voice_aliases": {"Bella": "x"}}, "has no voice x, which the alias Bella of config.json names"),
    ],
)
def test_a_wrong_config(folder: Path, values: dict[str, Any], message: str) -> None:
    configure(folder, **values)
    refused(folder, message)


def archive(**tables: np.ndarray) -> bytes:
    np.savez(content := io.BytesIO(), **tables)
    return content.getvalue()


def style(table: np.ndarray) -> bytes:
    return archive(**{"expr-voice-2-f": table})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (lambda _, damaged=damaged: damaged, "voices.npz cannot be read as voices")
            for damaged in (b"", b"PK\x03\x04damaged", b"\x93NUMPY", b"[]", style(np.array([{}] * 256, object)))
        ),
        (lambda content: content[: len(content) // 2], "voices.npz cannot be read as voices"),
        (lambda content: content[:200] + bytes(100) + content[300:], "voices.npz"),
        (lambda _: archive(), "has no voices"),
        (lambda _: style(np.zeros((4, 255), np.float32)), r"must be rows of 256 floats, not float32 \(4, 255\)"),
        (lambda _: style(np.zeros((0, 256), np.float32)), "must be rows"),
        (lambda _: style(np.zeros((4, 256), np.int64)), "must be rows"),
        (lambda _: style(np.full((4, 256), np.nan, np.float32)), "has NaN or infinite values"),
    ],
)
def test_voices_that_are_damaged_or_no_styles_are_refused(folder: Path, change: Any, message: str) -> None:
    path = folder / "voices.npz"
    path.write_bytes(change(path.read_bytes()))
    refused(folder, message)


def test_a_small_file_that_states_much_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices, "MAX_TABLES", 1 << 20)
    np.savez_compressed(folder / "voices.npz", **{"expr-voice-2-f": np.zeros((1024, 256), np.float32)})
    refused(folder, "it claims more than 1 MB")


def test_a_graph_that_is_damaged_or_of_another_model_is_refused(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"no graph")
    refused(folder, "ONNX Runtime cannot load .*model.onnx: .*: download the model again")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "foreign", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    refused(folder, "is not a KittenTTS graph: its inputs are x, not input_ids, style, speed")
    model = kitten_graph(8, 0)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 128
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros((128, 8), np.float32), "styling"))
    onnx.save(model, folder / "model.onnx")
    refused(folder, r"its input style is tensor\(float\) \(1, 128\)")


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        (np.full((178, 8), np.nan, np.float32), r"chunk 1 of 1, 'Say you\.': the graph returns NaN"),
        (np.zeros((50, 8), np.float32), r"chunk 1 of 1, 'Say you\.': ONNX Runtime cannot run .*model\.onnx: "),
    ],
)
def test_a_graph_that_fails_or_returns_nan_names_the_chunk(folder: Path, embedding: np.ndarray, message: str) -> None:
    model = kitten_graph(8, 0)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(embedding, "embedding"))
    onnx.save(model, folder / "model.onnx")
    assert_refused(message, lambda: kitten_speaker(folder).speak("Say you."))


def test_a_repository_is_downloaded_at_the_commit_of_its_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def download(repository: str, required: tuple[str, ...], *, revision: str | None, **options: Any) -> Snapshot:
        requests.append((repository, required, revision))
        return Snapshot("1" * 40, folder, dict.fromkeys(required, "0" * 64))

    monkeypatch.setattr(family, "download_files", download)
    repository = "KittenML/kitten-tts-nano-0.8-fp32"
    FAMILY.download(repository, None, lambda file: None)
    assert requests == [
        (repository, ("config.json",), None),
        (repository, ("config.json", "model.onnx", "voices.npz"), "1" * 40),
    ]


def test_a_bundle_has_the_files_of_its_folder(folder: Path, tmp_path: Path) -> None:
    destination = tmp_path / "bundles" / "kitty"
    written = write_bundle(import_kitten(folder), destination, licence="apache-2.0", source={"repository": "a/b"})
    assert (written.name, written.family.name) == ("kitty", "kitten")
    content = json.loads((destination / "bundle.json").read_text())
    assert (content["format"], content["model"], content["source"]) == (1, "kitten", {"repository": "a/b"})
    assert {record["file"] for record in content["files"].values()} == {"config.json", "model.onnx", "voices.npz"}
    assert all(
        (folder / name).read_bytes() == (destination / name).read_bytes()
        for name in ("config.json", "model.onnx", "voices.npz")
    )
    assert is_kitten_folder(folder)
    assert not is_kitten_folder(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.onnx", "voices.npz"])
def test_a_bundle_with_a_changed_file_is_refused(folder: Path, tmp_path: Path, file: str) -> None:
    write_bundle(import_kitten(folder), tmp_path / "kitty")
    flip(tmp_path / "kitty" / file, (folder / file).stat().st_size // 2)
    assert_refused(f"{file} has SHA-256", lambda: kitten_speaker(tmp_path / "kitty").speak("Hello.", "Bella"))


def test_a_damaged_header_and_a_member_that_is_no_array_are_one_line(tmp_path):
    path = tmp_path / "voices.npz"
    np.savez(path, heart=np.zeros((2, STYLE_WIDTH), np.float32))
    assert read_tables(path).keys() == {"heart"}
    with zipfile.ZipFile(path) as archive:
        whole = archive.read("heart.npy")
    start = whole.index(b"{'descr'")
    for position in range(start, whole.index(b"}", start)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x15
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("heart.npy", damaged)
        with suppress(UserError):
            read_tables(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("heart.npy", b"not an array")
    assert_refused("voice heart is not an array", read_tables, path)


def test_forms_are_spoken_as_by_the_published_code() -> None:
    assert not differences(preprocess, rows(__file__, "published_text.tsv", "forms"))


def test_a_chunk_takes_words_up_to_the_maximum() -> None:
    assert split_published("aa bb cc dd", 5) == ["aa bb,", "cc dd,"]
    assert split_published("aaaaaaa bb", 5) == ["aaaaaaa,", "bb,"]


def test_the_longest_word() -> None:
    assert preprocess("a" * MAX_WORD) == "a" * MAX_WORD
    assert_refused(f"can have at most {MAX_WORD}: insert spaces", lambda: preprocess("a" * (MAX_WORD + 1)))
