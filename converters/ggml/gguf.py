"""Writes a model as one GGUF file: networks, configs, tokenizer and voices.

All networks go into one file, with the network's name as prefix of its tensors: programs memory-map the file, so unused
parts cost nothing. ``networks`` selects some, for programs that need them apart.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np

from ane.bundles import Model
from ane.models.tortoise.networks import NETWORKS
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.voices import Voice, list_voices, open_voice
from converters.ggml.gguf_layout import NAME_BYTES, GgufTensor, Type, encode, gguf_tensors
from converters.ggml.gguf_metadata import ARCHITECTURE, add_metadata
from converters.models import chosen_networks

SUFFIX = ".gguf"


def write_gguf(model: Model, destination: Path, precision: str, networks: Sequence[str] | None = None,
               overwrite: bool = False, progress: Callable[[str], None] = lambda network: None) -> list[GgufTensor]:
    """Write ``model`` to ``destination`` atomically; return the tensors written.

    Besides the networks' tensors (``gguf_layout``), the file has ``mel_norms`` (80,), and for each voice stored as
    latents ``voice.NAME.autoregressive`` (D,) and ``voice.NAME.diffusion`` (C,), all float32.

    Args:
        precision: one of ``gguf_layout.PRECISIONS``.
        networks: which to write (default: all of the model's).
        progress: called with each network's name before it is written.

    Raises:
        UserError: the name does not end in .gguf, the file exists and ``overwrite`` is False, a network is unknown or
            missing, a value does not fit the precision, a voice belongs to another model or its name is too long, the
            disk is full.
    """
    if destination.suffix != SUFFIX:
        raise UserError(f"{destination}: the name must end in {SUFFIX}")
    if destination.exists() and not overwrite:
        raise UserError(f"{destination} exists; add overwrite=True to replace it")
    chosen = chosen_networks(model, networks, NETWORKS)
    voices = latent_voices(model)
    extra = _extra_tensors(model, voices)
    plans = {network: gguf_tensors(network, model.config(network), precision) for network in chosen}
    with replacing(destination) as path:
        writer = gguf.GGUFWriter(path, ARCHITECTURE)
        try:
            add_metadata(writer, model, chosen, list(voices), precision)
            small = [GgufTensor(name, values.shape, Type.F32) for name, values in extra.items()]
            for entry in (*small, *(entry for plan in plans.values() for entry in plan)):
                writer.add_tensor_info(entry.name, entry.stored_shape, entry.dtype, entry.bytes, entry.type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for values in extra.values():
                writer.write_tensor_data(values)
            for network, plan in plans.items():
                progress(network)
                tensors = model.tensors(network)
                for entry in plan:
                    writer.write_tensor_data(encode(entry, tensors[entry.key], f"{model.name}: {network}"))
        finally:
            writer.close()
    return [*small, *(entry for plan in plans.values() for entry in plan)]


def latent_voices(model: Model) -> dict[str, Voice]:
    """A model's voices that are stored as latents, by name.

    Raises:
        UserError: one is damaged, or belongs to another model.
    """
    found = list_voices([model.voices] if model.voices else []).values()
    voices = {voice.name: opened for voice in found if isinstance(opened := open_voice(voice.name, voice.files), Voice)}
    for voice in voices.values():
        voice.check_widths(model.widths)
    return voices


def _extra_tensors(model: Model, voices: dict[str, Voice]) -> dict[str, np.ndarray]:
    extra = {"mel_norms": model.mel_norms}
    for name, voice in voices.items():
        extra |= {f"voice.{name}.autoregressive": voice.ar[0], f"voice.{name}.diffusion": voice.diffusion[0]}
    for name in extra:
        if len(name.encode()) > NAME_BYTES:
            raise UserError(f"the name {name} is too long for a GGUF file ({NAME_BYTES} bytes): rename the voice")
    return extra
