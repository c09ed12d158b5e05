"""Write the three files of weights that tortoise.cpp reads, and the tokenizer and voice that it reads with them.

A file is a magic number, then for each tensor three int32 (number of axes, bytes of its name, type), an int32 for each
axis, innermost first, the name, and the values. tortoise.cpp has one size of each network in its source and stores all
values in float32. It reads a voice's latent for the decoder from a file of bare numbers. The latent for the diffusion
decoder is a tensor in that network's file.
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
FLOAT32 = 0  # ggml's number for the type
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
    """Write the files into a directory: all or none. Other files in the directory stay as they are.

    Args:
        model: The bundle to write.
        voice: The voice to write.
        destination: The directory.
        networks: Networks to write, from ``FILES`` (default: all of them).
        overwrite: Whether to replace existing files.
        progress: Called with each network's name before it is written.

    Returns:
        The paths of the files.

    Raises:
        UserError: A network has no place in these files or is missing, a file exists, a value is not finite, the voice
            was made with another model, or the disk is full.
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
        # one line, as in upstream's file: the parser of tortoise.cpp only looks for keys and numbers
        text = json.dumps(json.loads(model.tokenizer), ensure_ascii=False, separators=(",", ":"))
        stack.enter_context(replacing(destination / TOKENIZER)).write_text(text, encoding="utf-8")
        stack.enter_context(replacing(destination / VOICE)).write_bytes(voice.ar.astype("<f4").tobytes())
    return [destination / name for name in names]


def size_note(model: Bundle, networks: Sequence[str]) -> str:
    """Return a clause about the first hyper-parameter that differs from tortoise.cpp's source, or ""."""
    for network in networks:
        config, official = model.config(network), NETWORKS[network].official()
        for field in fields(official):
            actual, expected = getattr(config, field.name), getattr(official, field.name)
            if actual != expected and field.name not in config.without_effect:
                return f"the {network} network of {model.name} has {field.name} {actual}, not {expected}"
    return ""


def ggml_tensors(model: Bundle, network: str, voice: Voice) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the float32 values of each tensor in a file.

    The values have no axes of size 1, as the program expects: a kernel (1, 32, 7) is (32, 7).
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
