"""Write the files that the program tortoise.cpp reads: three files of weights, the tokenizer, and a voice.

A file of weights begins with a magic number. Then, each tensor has three int32 (number of axes, bytes of the tensor's
name, type), one int32 for the length of each axis beginning with the innermost axis, the name, and the values.
tortoise.cpp accepts only one size of each network, and only float32.

The voice's file has the voice's latent for the decoder, as plain numbers. The voice's latent for the diffusion decoder
is a tensor in the diffusion decoder's file.
"""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import numpy as np

from ane.bundles import Bundle
from ane.bundles.weights import convert_precision
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.voices import Voice
from converters.function_table import pick_networks

MAGIC = 0x67676D6C  # "ggml"
FLOAT32 = 0  # ggml's number for the type float32
FILES = {
    "autoregressive": "ggml-model.bin",
    "diffusion": "ggml-diffusion-model.bin",
    "univnet": "ggml-vocoder-model.bin",
}
TOKENIZER, VOICE = "tokenizer.json", "voice.bin"
LATENT = "diffusion_conditioning_latent"
RENAMED = (
    ("gpt.", "inference_model.transformer."),
    ("final_norm.", "inference_model.lm_head.0."),
    ("mel_head.", "inference_model.lm_head.1."),
)


def write_ggml(
    model: Bundle,
    voice: Voice,
    destination: Path,
    networks: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda network: None,
) -> list[Path]:
    """Write the files into a directory.

    The files appear when all files are complete. Other files in the directory do not change.

    Args:
        model: The bundle to write.
        voice: The voice to write.
        destination: The directory.
        networks: Networks to write, from ``FILES`` (default: all networks in ``FILES``).
        overwrite: Whether to replace existing files.
        progress: Function that is called with the name of each network before the network is written.

    Returns:
        The paths of the files.

    Raises:
        UserError: tortoise.cpp has no file for a requested network, the model lacks the network, a file exists, a value
            is not finite, the voice was made with another model, or the disk is full.
    """
    chosen = pick_networks(model, list(FILES) if networks is None else networks, tuple(FILES))
    voice.check_widths(model.widths)
    names = [*(FILES[network] for network in chosen), TOKENIZER, VOICE]
    for name in names:
        if (destination / name).exists() and not overwrite:
            raise UserError(f"{destination / name} exists: add overwrite=True to replace it")
    with ExitStack() as stack:
        for network in chosen:
            progress(network)
            _write(stack.enter_context(replacing(destination / FILES[network])), ggml_tensors(model, network, voice))
        # tortoise.cpp's parser only looks for keys and numbers, so the tokenizer is on one line, as in upstream's file
        text = json.dumps(json.loads(model.tokenizer), ensure_ascii=False, separators=(",", ":"))
        stack.enter_context(replacing(destination / TOKENIZER)).write_text(text, encoding="utf-8")
        stack.enter_context(replacing(destination / VOICE)).write_bytes(voice.ar.astype("<f4").tobytes())
    return [destination / name for name in names]


def size_note(model: Bundle, networks: Sequence[str]) -> str:
    """Say which hyper-parameter, if any, differs from the size that tortoise.cpp accepts. Otherwise return ""."""
    for network in networks:
        config, official = model.config(network), NETWORKS[network].official()
        for field in fields(official):
            actual, expected = getattr(config, field.name), getattr(official, field.name)
            if actual != expected and field.name not in config.without_effect:
                return f"the {network} network of {model.name} has {field.name} {actual}, not {expected}"
    return ""


def ggml_tensors(model: Bundle, network: str, voice: Voice) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the float32 values of each tensor in a network's file.

    Axes of size 1 are removed, as tortoise.cpp expects: a kernel (1, 32, 7) becomes (32, 7).
    """
    if network == "diffusion":
        yield LATENT, voice.diffusion
    for key, tensor in model.tensors(network).items():
        wide = convert_precision({key: tensor}, "fp32", frozenset(), f"{model.name}: {network}")[key]
        name = key
        for ours, theirs in RENAMED if network == "autoregressive" else ():
            name = theirs + key.removeprefix(ours) if key.startswith(ours) else name
        yield name, np.atleast_1d(wide.numpy().squeeze())


def _write(path: Path, tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<I", MAGIC))
        for name, values in tensors:
            axes, text = values.shape[::-1], name.encode()
            file.write(struct.pack(f"<3i{len(axes)}i", len(axes), len(text), FLOAT32, *axes) + text)
            file.write(np.ascontiguousarray(values, "<f4").data)
