"""A whole model as one GGUF file: networks, configs, tokenizer and voices.

One file and not one a network: what reads ggml's files maps them into memory, so a part that is not used costs nothing,
and names begin with the network's. ``networks`` picks some, for a consumer that wants them apart.
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
from converters.ggml.gguf_layout import NAME_BYTES, Entry, Type, entries, stored
from converters.ggml.gguf_metadata import ARCHITECTURE, add_metadata

SUFFIX = ".gguf"


def write_gguf(model: Model, destination: Path, precision: str, networks: Sequence[str] | None = None,
               overwrite: bool = False, progress: Callable[[str], None] = lambda network: None) -> list[Entry]:
    """Write ``model`` to ``destination``, whole or not at all, and give what is in it.

    Beside the networks' tensors (``gguf_layout``) there are ``mel_norms`` (80,), and for each voice that is stored as
    latents ``voice.NAME.autoregressive`` (D,) and ``voice.NAME.diffusion`` (C,), all float32.

    Args:
        precision: of ``gguf_layout.PRECISIONS``.
        networks: what to write (default: all that the model has).
        progress: called with each network's name before it is written.

    Raises:
        UserError: no .gguf, a file is there and ``overwrite`` is False, an unknown network or one that the model lacks,
            a value that does not fit the precision, a voice of another model or with too long a name, no room.
    """
    if destination.suffix != SUFFIX:
        raise UserError(f"{destination}: end its name in {SUFFIX}")
    if destination.exists() and not overwrite:
        raise UserError(f"{destination} exists; add --force to replace it")
    chosen = _networks(model, networks)
    voices = latent_voices(model)
    beside = _beside(model, voices)
    plans = {network: entries(network, model.config(network), precision) for network in chosen}
    with replacing(destination) as path:
        writer = gguf.GGUFWriter(path, ARCHITECTURE)
        try:
            add_metadata(writer, model, chosen, list(voices), precision)
            small = [Entry(name, values.shape, Type.F32) for name, values in beside.items()]
            for entry in (*small, *(entry for plan in plans.values() for entry in plan)):
                writer.add_tensor_info(entry.name, entry.stored_shape, entry.dtype, entry.bytes, entry.type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for values in beside.values():
                writer.write_tensor_data(values)
            for network, plan in plans.items():
                progress(network)
                tensors = model.tensors(network)
                for entry in plan:
                    writer.write_tensor_data(stored(entry, tensors[entry.key], f"{model.name}: {network}"))
        finally:
            writer.close()
    return [*small, *(entry for plan in plans.values() for entry in plan)]


def latent_voices(model: Model) -> dict[str, Voice]:
    """The voices that come with a model as latents, by name.

    Raises:
        UserError: one is damaged, or was made with another model.
    """
    found = list_voices([model.voices] if model.voices else []).values()
    voices = {voice.name: opened for voice in found if isinstance(opened := open_voice(voice.name, voice.files), Voice)}
    for voice in voices.values():
        voice.check_widths(model.widths)
    return voices


def _beside(model: Model, voices: dict[str, Voice]) -> dict[str, np.ndarray]:
    """What a model has of tensors beside its networks, by name."""
    beside = {"mel_norms": model.mel_norms}
    for name, voice in voices.items():
        beside |= {f"voice.{name}.autoregressive": voice.ar[0], f"voice.{name}.diffusion": voice.diffusion[0]}
    for name in beside:
        if len(name.encode()) > NAME_BYTES:
            raise UserError(f"the name {name} is too long for a GGUF file ({NAME_BYTES} bytes): rename the voice")
    return beside


def _networks(model: Model, wanted: Sequence[str] | None) -> list[str]:
    if wanted is not None and not wanted:
        raise UserError(f"--stages names no network; there are {', '.join(NETWORKS)}")
    for network in wanted or ():
        if network not in NETWORKS:
            raise UserError(f"--stages {network}: no such network; there are {', '.join(NETWORKS)}")
        model.require(network)
    return [network for network in NETWORKS if network in (wanted or model.networks)]
