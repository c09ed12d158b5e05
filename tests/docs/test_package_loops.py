"""Test that the loops of docs/run-a-package.md, which use none of our code, draw the codes of our decoder on torch.

The page's own commands convert the packages.
"""

# ruff: noqa: F811  fixtures are imported

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.bundles.bundle import Bundle
from ane.cli import main
from ane.models.tortoise.decoding import Embeddings
from ane.text.tokenizer import Tokenizer
from ane.voices import load_voice
from tests import random_model
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.docs.test_commands import ROOT, blocks

LINES = 30
ALIVE: list[dict] = []
PAGE = [block.text for block in blocks(ROOT / "docs" / "run-a-package.md")]
[CONVERSIONS] = [text for text in PAGE if text.startswith("ane convert")]
LOOPS = {re.search(r'bundle = "tortoise-(\w+)"', text)[1]: text for text in PAGE if "bundle = " in text}


def likeliest_codes(model: Bundle, text: str) -> list[int]:
    """At most 20 codes of the decoder on torch, in float32."""
    backend, config = load_backend("torch:cpu", model), model.config("autoregressive")
    embeddings, decoder = Embeddings(**backend.embeddings()), backend.decoder(1, 20)
    voice = load_voice(model.path / "voices" / f"{model.default_voice}.safetensors")
    prefix = embeddings.prefix(voice.ar, Tokenizer(model.tokenizer).encode_normalised(text), config)
    codes = [int(decoder.prefill(prefix)[1].argmax())]
    while codes[-1] != config.stop_mel_token and len(codes) < 20:
        column = embeddings.codes(codes[-1], len(codes))[None, None]
        codes.append(int(decoder.step(column, np.array([len(codes) - 1]))[1][0].argmax()))
    return codes


@pytest.fixture
def packaged(tmp_path_factory, target) -> Path:
    """The folder in which the page's command converted a decoder of one layer that does not stop early."""
    folder = tmp_path_factory.mktemp("loops")
    with random_model.sized(-9.0, autoregressive={"layers": 1}):
        random_model.write_random_bundle(folder / "bundles" / "tortoise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANE_HOME", str(folder))
        patch.chdir(folder)
        [command] = [line for line in CONVERSIONS.splitlines() if f"--to {target}" in line]
        assert main(shlex.split(command)[1:]) == 0
    return folder


@pytest.mark.parametrize("target", ["coreml", "onnx"])
def test_a_loop_without_ane_gives_the_codes_of_torch(packaged, target, mac, monkeypatch, capsys):
    loop = LOOPS[target]
    assert sum(bool(line.strip()) for line in loop.splitlines()) <= LINES
    assert not re.search(r"\b(import|from) (ane|converters)\b", loop)
    monkeypatch.chdir(packaged)
    ALIVE.append({})  # keeps objects alive, as a process does until it ends
    exec(compile(loop, "run-a-package.md", "exec"), ALIVE[-1])
    codes = [int(word) for word in capsys.readouterr().out.split()]
    assert codes == likeliest_codes(Bundle(packaged / f"tortoise-{target}"), "hello there.")
    assert len(set(codes)) > 3, "a loop that stands still"
