"""A checkpoint of no model that is known is one clear line; tests/models has those that are incomplete or damaged."""

from pathlib import Path

import pytest
import torch

from tests.commands.conftest import Complain


@pytest.mark.parametrize(("content", "fault"), [
    ({"layer.weight": torch.zeros(2)}, "of no model that this version knows: it holds layer.weight; FastSpeech"),
    ({letter: torch.zeros(2) for letter in "abcdefgh"}, "it holds a, b, c, d, e, f and 2 more; FastSpeech"),
    ({"epoch": 3, "optimizers": []}, "is the state of a trainer, whose weights are in another file"),
    ([1, 2], "contains a list, not a state dict"), (torch.zeros(3), "contains a Tensor, not a state dict"),
    ({"model_state_dict": {}}, "Whisper's dims and model_state_dict"), (b"junk", "is not a PyTorch checkpoint")])
def test_a_foreign_file(complain: Complain, workplace: Path, content: object, fault: str) -> None:
    if isinstance(content, bytes):
        (workplace / "foreign.pt").write_bytes(content)
    else:
        torch.save(content, workplace / "foreign.pt")
    for command in (("import", "foreign.pt", "-o", "./out"),
                    ("say", "Hi.", "--checkpoints", "foreign.pt", "-o", "x.wav")):
        assert fault in complain(*command)
