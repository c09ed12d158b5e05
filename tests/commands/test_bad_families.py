"""Checkpoints of the three smaller families that are foreign, incomplete or of wrong sizes are one clear line."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.commands.conftest import Complain
from tests.fastspeech_files import write_fastspeech, write_hifigan
from tests.models.kitten.kitten_model import write_kitten_model
from tests.models.whisper.random_whisper import write_openai


@pytest.fixture
def work(workplace: Path) -> Path:
    """The working folder, with fastspeech.pt, vocoder.pth, whisper/ and kitten/."""
    folder = workplace
    write_fastspeech(folder / "fastspeech.pt")
    write_hifigan(folder / "vocoder.pth")
    (folder / "whisper").mkdir()
    write_openai(folder / "whisper").rename(folder / "whisper" / "whisper.pt")
    write_kitten_model(folder / "kitten")
    return folder


@pytest.mark.parametrize(("content", "fault"), [
    ({"layer.weight": torch.zeros(2)}, "of no model that this version knows: it holds layer.weight; FastSpeech"),
    ({letter: torch.zeros(2) for letter in "abcdefgh"}, "it holds a, b, c, d, e, f and 2 more; FastSpeech"),
    ({"epoch": 3, "optimizers": []}, "is the state of a trainer, whose weights are in another file"),
    ([1, 2], "contains a list, not a state dict"), (torch.zeros(3), "contains a Tensor, not a state dict"),
    ({"model_state_dict": {}}, "Whisper's dims and model_state_dict"), (b"junk", "is not a PyTorch checkpoint")])
def test_a_foreign_file(complain: Complain, work: Path, content: object, fault: str) -> None:
    if isinstance(content, bytes):
        (work / "foreign.pt").write_bytes(content)
    else:
        torch.save(content, work / "foreign.pt")
    for command in (("import", "foreign.pt", "-o", "./out"),
                    ("say", "Hi.", "--checkpoints", "foreign.pt", "-o", "x.wav")):
        assert fault in complain(*command)


@pytest.mark.parametrize(("value", "fault"), [
    (None, "key mel_linear.weight is missing"), (torch.zeros(3, 5), "mel_linear.weight has shape 3×5"),
    ("text", "key mel_linear.weight is of another shape")])
def test_a_fastspeech_file_with_another_tensor(complain: Complain, work: Path, value: object, fault: str) -> None:
    content = torch.load(work / "fastspeech.pt", weights_only=True)
    entries = content.get("model", content)
    key = next(key for key in entries if key.removeprefix("module.") == "mel_linear.weight")
    torch.save({name: tensor for name, tensor in {**entries, key: value}.items() if tensor is not None},
               work / "fastspeech.pt")
    assert fault in complain("import", "fastspeech.pt", "-o", "./out")


def test_whisper_where_speech_is_wanted(complain: Complain, work: Path) -> None:
    assert "it transcribes speech" in complain("say", "Hi.", "--checkpoints", "whisper/whisper.pt", "-o", "x.wav")


def test_sizes_that_no_network_could_have_are_refused_at_once(complain: Complain, work: Path) -> None:
    content = torch.load(work / "whisper" / "whisper.pt", weights_only=True)
    content["dims"]["n_audio_layer"] = 10**9
    torch.save(content, work / "whisper" / "whisper.pt")
    assert "state 1000000000 layers of the encoder" in complain("import", "whisper", "-o", "./out")


def test_a_graph_of_another_interface(complain: Complain, work: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "other", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8),
              work / "kitten" / "model.onnx")
    for command in (("import", "kitten", "-o", "./out"), ("say", "Hi.", "--checkpoints", "kitten", "-o", "x.wav")):
        assert "model.onnx is not a KittenTTS graph: its inputs are x" in complain(*command)


@pytest.mark.parametrize(("text", "fault"), [("", "the text is empty"), ("?!... —", "there is nothing to say in")])
@pytest.mark.parametrize("model", ["kitten", "fastspeech.pt"])
def test_text_without_words(complain: Complain, work: Path, model: str, text: str, fault: str) -> None:
    assert fault in complain("say", text, "--checkpoints", model, "-o", "x.wav")
