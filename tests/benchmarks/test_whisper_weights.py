"""CTranslate2's Whisper files: their layout, written here for a tiny network, gives OpenAI's tensors."""

import struct

import numpy as np
import pytest
import torch

from ane.models.whisper.networks import WHISPER_NETWORKS
from ane.system.errors import UserError
from benchmarks.whisper_weights import openai_checkpoint, read_ctranslate2

WIDTH, BANDS, TOKENS, HEADS = 4, 3, 7, 2


def linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/weight": (outputs, inputs), f"{name}/bias": (outputs,)}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (WIDTH,), f"{name}/beta": (WIDTH,)}


def layer(side: str) -> dict[str, tuple[int, ...]]:
    name = f"{side}/layer_0"
    shapes = {**norm(f"{name}/self_attention/layer_norm"), **norm(f"{name}/ffn/layer_norm"),
              **linear(f"{name}/self_attention/linear_0", 3 * WIDTH, WIDTH),
              **linear(f"{name}/self_attention/linear_1", WIDTH, WIDTH),
              **linear(f"{name}/ffn/linear_0", 4 * WIDTH, WIDTH), **linear(f"{name}/ffn/linear_1", WIDTH, 4 * WIDTH)}
    if side == "decoder":
        shapes |= {**norm(f"{name}/attention/layer_norm"), **linear(f"{name}/attention/linear_0", WIDTH, WIDTH),
                   **linear(f"{name}/attention/linear_1", 2 * WIDTH, WIDTH),
                   **linear(f"{name}/attention/linear_2", WIDTH, WIDTH)}
    return shapes


@pytest.fixture
def arrays():
    shapes = {"encoder/position_encodings/encodings": (6, WIDTH), "decoder/position_encodings/encodings": (5, WIDTH),
              "decoder/embeddings/weight": (TOKENS, WIDTH), "encoder/conv1/weight": (WIDTH, BANDS, 3),
              "encoder/conv2/weight": (WIDTH, WIDTH, 3), "encoder/conv1/bias": (WIDTH,), "encoder/conv2/bias": (WIDTH,),
              **norm("encoder/layer_norm"), **norm("decoder/layer_norm"), **layer("encoder"), **layer("decoder")}
    rng = np.random.default_rng(0)
    return {**{name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()},
            "encoder/num_heads": np.int16(HEADS), "decoder/num_heads": np.int16(HEADS)}


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def test_a_file_is_read_with_its_aliases(arrays, tmp_path):
    content = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(arrays))
    for name, array in arrays.items():
        content += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        content += struct.pack("<BI", 4 if array.dtype == np.float16 else 2, array.nbytes) + array.tobytes()
    content += struct.pack("<I", 1) + text("decoder/projection/weight") + text("decoder/embeddings/weight")
    (tmp_path / "model.bin").write_bytes(content)
    found = read_ctranslate2(tmp_path / "model.bin")
    assert found.keys() == {*arrays, "decoder/projection/weight"}
    assert all((found[name] == array).all() for name, array in arrays.items())
    (tmp_path / "model.bin").write_bytes(struct.pack("<I", 5) + text("TransformerSpec"))
    with pytest.raises(UserError, match="TransformerSpec in version 5"):
        read_ctranslate2(tmp_path / "model.bin")


def test_the_tensors_are_those_of_the_networks(arrays):
    checkpoint = openai_checkpoint(arrays)
    sizes, state = checkpoint["dims"], checkpoint["model_state_dict"]
    assert (sizes["n_text_head"], sizes["n_vocab"], sizes["n_audio_layer"]) == (HEADS, TOKENS, 1)
    for side, entry in WHISPER_NETWORKS.items():
        config = entry.config.from_upstream({**sizes, "alignment_heads": ()})
        network = entry.module(config)
        network.load_state_dict({key.removeprefix(f"{side}."): tensor for key, tensor in state.items()
                                 if key.startswith(f"{side}.")})
    stacked = arrays["decoder/layer_0/attention/linear_1/weight"]
    assert torch.equal(state["decoder.blocks.0.cross_attn.value.weight"], torch.from_numpy(stacked[WIDTH:]))
