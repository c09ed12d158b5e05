"""Test that the loops of docs/run-a-package.md, which use none of our code, draw the codes of our decoder on torch."""

# ruff: noqa: F811  fixtures are imported

import re
from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.bundles.bundle import Bundle
from ane.models.tortoise.decoding import Embeddings
from ane.text.tokenizer import Tokenizer
from ane.voices import load_voice
from converters.coreml.coreml_package import CoreMLOptions
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests import random_model
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.conversions import converted
from tests.docs.test_commands import ROOT, blocks

LINES = 30
ALIVE: list[dict] = []
LOOPS = {
    re.search(r'bundle = "tortoise-(\w+)"', block.text)[1]: block.text
    for block in blocks(ROOT / "docs" / "run-a-package.md")
    if "bundle = " in block.text
}


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


@pytest.fixture(scope="module")
def packaged(tmp_path_factory, shared: Path) -> dict[str, Bundle]:
    """A decoder of one layer that does not stop early."""
    with random_model.sized(-9.0, autoregressive={"layers": 1}):
        random_model.write_random_bundle(tmp_path_factory.mktemp("loops") / "bundle")
    model, networks = Bundle(tmp_path_factory.getbasetemp() / "loops0" / "bundle"), ["autoregressive"]
    options = CoreMLOptions(lanes=(1,), caches=("io",), buckets={"prefill": (64,), "step": (512,)})
    return {
        "coreml": converted(shared, model, [options], networks),
        "onnx": converted(shared, model, [OnnxOptions()], networks, OnnxTarget()),
    }


@pytest.mark.parametrize("target", ["coreml", "onnx"])
def test_a_loop_without_ane_gives_the_codes_of_torch(packaged, target, mac, tmp_path, monkeypatch, capsys):
    loop = LOOPS[target]
    assert sum(bool(line.strip()) for line in loop.splitlines()) <= LINES
    assert not re.search(r"\b(import|from) (ane|converters)\b", loop)
    (tmp_path / f"tortoise-{target}").symlink_to(packaged[target].path)
    monkeypatch.chdir(tmp_path)
    ALIVE.append({})  # keeps objects alive, as a process does until it ends
    exec(compile(loop, "run-a-package.md", "exec"), ALIVE[-1])
    codes = [int(word) for word in capsys.readouterr().out.split()]
    assert codes == likeliest_codes(packaged[target], "hello there.")
    assert len(set(codes)) > 3, "a loop that stands still"
