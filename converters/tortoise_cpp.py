"""Writes the files that tortoise.cpp reads: three networks, the tokenizer and a voice.

A network's file has the magic number, then for each tensor three int32 (number of axes, bytes of the name, type), an
int32 for each axis, innermost first, the name, the values. tortoise.cpp supports one size of each network, float32
only. It reads the voice's diffusion latent from the diffusion network's file, and the decoder's from a file of raw
float32 numbers.
"""

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import numpy as np

from ane.bundles import Model
from ane.bundles.weights import convert_precision
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.voices import Voice

MAGIC = 0x67676D6C          # "ggml"
FLOAT32 = 0                 # of ggml's types
FILES = {"autoregressive": "ggml-model.bin", "diffusion": "ggml-diffusion-model.bin",
         "univnet": "ggml-vocoder-model.bin"}
TOKENIZER, VOICE = "tokenizer.json", "voice.bin"
LATENT = "diffusion_conditioning_latent"
RENAMED = (("gpt.", "inference_model.transformer."), ("final_norm.", "inference_model.lm_head.0."),
           ("mel_head.", "inference_model.lm_head.1."))


def write_ggml(model: Model, voice: Voice, destination: Path, overwrite: bool = False,
               progress: Callable[[str], None] = lambda network: None) -> list[Path]:
    """Write the five files into the directory ``destination``, all or none; other files there are kept.

    ``progress`` is called with each network's name before it is written.

    Raises:
        UserError: a network is missing or has another size than tortoise.cpp's, a file exists and ``overwrite`` is
            False, a value is not finite, the disk is full.
    """
    for network in FILES:
        check_size(model, network)
    voice.check_widths(model.widths)
    names = [*FILES.values(), TOKENIZER, VOICE]
    for file in (destination / name for name in names):
        if file.is_dir():
            raise UserError(f"cannot write {file}: a directory of that name exists; move it, or choose another -o")
        if file.exists() and not overwrite:
            raise UserError(f"{file} exists; add overwrite=True to replace it")
    with ExitStack() as stack:
        for network, name in FILES.items():
            path = stack.enter_context(replacing(destination / name))
            progress(network)
            _write(path, _tensors(model, network, voice))
        # one line, as upstream's: the program's parser is minimal
        text = json.dumps(json.loads(model.tokenizer), ensure_ascii=False, separators=(",", ":"))
        stack.enter_context(replacing(destination / TOKENIZER)).write_text(text, encoding="utf-8")
        stack.enter_context(replacing(destination / VOICE)).write_bytes(voice.ar.astype("<f4").tobytes())
    return [destination / name for name in names]


def check_size(model: Model, network: str) -> None:
    """Raise UserError unless the network exists in the one size that tortoise.cpp supports."""
    model.require(network)
    config, official = model.config(network), NETWORKS[network].official()
    for field in fields(official):
        actual, required = getattr(config, field.name), getattr(official, field.name)
        if actual != required:
            raise UserError(f"tortoise.cpp runs only networks of the official size: the {network} network of "
                            f"{model.name} has {field.name} {actual}, not {required}; the format gguf takes any size")


def _tensors(model: Model, network: str, voice: Voice) -> Iterator[tuple[str, np.ndarray]]:
    if network == "diffusion":
        yield LATENT, voice.diffusion
    tensors = model.tensors(network)
    for key in tensors:
        wide = convert_precision({key: tensors[key]}, "fp32", frozenset(), f"{model.name}: {network}")[key]
        yield name_of(network, key), wide.numpy().reshape(squeezed(tuple(wide.shape)))


def name_of(network: str, key: str) -> str:
    """The program's name of a tensor: upstream's, and in the decoder that of upstream's inference wrapper."""
    for ours, theirs in RENAMED if network == "autoregressive" else ():
        if key.startswith(ours):
            return theirs + key.removeprefix(ours)
    return key


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without axes of size 1, as the program expects: (1, 32, 7) → (32, 7)."""
    return tuple(size for size in shape if size != 1) or (1,)


def _write(path: Path, tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<I", MAGIC))
        for name, values in tensors:
            axes, text = values.shape[::-1], name.encode()
            file.write(struct.pack(f"<3i{len(axes)}i", len(axes), len(text), FLOAT32, *axes) + text)
            file.write(values.astype("<f4", copy=False).data)
