"""Read HiFi-GAN generators from the files that jik876 and NVIDIA publish, which torch.save wrote."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ane.bundles.family import Network, freeze
from ane.bundles.state_dicts import StateDict, find_state_dict
from ane.bundles.torch_checkpoint import Entries, assemble, load_pickle, match_entries, nearest_surplus, sources
from ane.bundles.weights import layout
from ane.models.vocoders.hifigan import AUDIO, MelHifiganConfig
from ane.system.errors import UserError
from ane.system.files import read_json

CONFIG_FILE = "config.json"
NESTED_BLOCK = re.compile(
    r"resblocks\.(\d+)\.(\d+)\.(convs\d?\..+)"
)  # NVIDIA's keys, with the number of the level and the number of the block within the level
# Dilations of the official versions, by the type of the block ("1" or "2") and its kernel size.
DILATIONS = {**{("1", size): (1, 3, 5) for size in (3, 7, 11)}, ("2", 3): (1, 2), ("2", 5): (2, 6), ("2", 7): (3, 12)}


class HifiganCheckpoint:
    """A HiFi-GAN generator that was read from a file.

    Its sizes come from config.json in the same folder. If the folder has no config.json, the sizes come from the file,
    or from the shapes of the tensors.

    Attributes:
        config: Sizes of the generator.
        unused: Keys of the generator's state dict that the network does not use.
        beside: Entries of the file that are not the generator.
        notes: Sentences for the user about the choice of the generator's weights.

    Raises:
        UserError: The file is missing or damaged, is not a HiFi-GAN generator, or was trained for sound that differs
            from ``AUDIO``.
    """

    def __init__(self, path: Path, network: Network):
        self.path, self.network = path, network.name
        loaded = load_pickle(path)
        if not isinstance(loaded, Mapping):
            raise UserError(f"{path} contains a {type(loaded).__name__}, not a HiFi-GAN generator")
        found = find_generator(loaded, path)
        self._entries, self.beside, self.notes = generator_entries(found.entries, path), found.siblings, found.notes
        self.config = read_config(loaded, self._entries, path)
        self._found = match_entries(
            layout(network, self.config).shapes,
            self._entries,
            path,
            lambda key: (
                nearest_surplus(key, self._entries, layout(network, self.config).shapes)
                or "this is not a HiFi-GAN generator, or config.json next to it has other sizes"
            ),
            lambda: "config.json next to it has other sizes, or the file is damaged",
        )
        used = {part for source in self._found.values() for part in source}
        self.unused = [key for key in self._entries if key not in used]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state dict, with weight normalisation folded into the weights."""
        return {key: assemble(source, self._entries) for key, source in self._found.items()}


def find_generator(loaded: Mapping[Any, Any], path: Path) -> StateDict:
    """Find the state dict in the content of a vocoder's file."""
    return find_state_dict(loaded, path, ("generator",))


def has_generator(entries: Mapping[str, Any]) -> bool:
    """Return whether a state dict is the generator of a HiFi-GAN or BigVGAN."""
    return any(key.startswith("conv_pre.") for key in entries)


def generator_entries(entries: Mapping[str, Any], path: Path) -> dict[str, torch.Tensor]:
    """Return a generator's state dict under jik876's names. Raises UserError if it is not a generator."""
    if not has_generator(entries):
        raise UserError(
            f"{path} is not a HiFi-GAN generator, because it has no conv_pre.weight: give the file of a generator, "
            "such as g_02500000 or generator_v1"
        )
    nested = [(int(found[1]), int(found[2])) for key in entries if (found := NESTED_BLOCK.fullmatch(key))]
    blocks = 1 + max((block for _, block in nested), default=0)

    def flat(key: str) -> str:
        """Replace a block's two numbers by one: resblocks.2.1.convs1.0.weight → resblocks.7.…, for 3 blocks a level."""
        found = NESTED_BLOCK.fullmatch(key)
        return f"resblocks.{int(found[1]) * blocks + int(found[2])}.{found[3]}" if found else key

    # NVIDIA may store a kernel with a further axis of length 1, as for an image that is one pixel wide.
    return {
        flat(key): value[..., 0] if isinstance(value, torch.Tensor) and value.shape[3:] == (1,) else value
        for key, value in entries.items()
    }


def read_config(loaded: Mapping[Any, Any], entries: Entries, path: Path) -> MelHifiganConfig:
    """Read the sizes from config.json next to the file, from the file, or from the shapes of the tensors.

    Raises:
        UserError: The sizes do not describe a generator, or describe a generator for other mels than ``AUDIO``.
    """
    beside = path.parent / CONFIG_FILE
    stated, where = loaded.get("config"), f"{path}: config"
    if beside.is_file() and isinstance(content := read_json(beside), Mapping) and "upsample_rates" in content:
        stated, where = content, str(beside)
    if not isinstance(stated, Mapping) or "upsample_rates" not in stated:
        config, where = infer_config(entries, path), str(path)
    else:
        for name, value in AUDIO.items():
            if stated.get(name, value) != value:
                raise UserError(
                    f"{where}: {name} is {stated[name]}, but FastSpeech's mels need {value}: use a vocoder that was "
                    "trained for 22.05 kHz, 80 bands, hop 256 and frequencies up to 8 kHz"
                )
        values = {field.name: freeze(stated[field.name]) for field in fields(MelHifiganConfig) if field.name in stated}
        if "resblock" in values:
            values["resblock"] = str(values["resblock"])
        for name, value in values.items():
            MelHifiganConfig().check_value(name, value, where)
        config = MelHifiganConfig(**values)
    config.check(where)
    return config


def infer_config(entries: Entries, path: Path) -> MelHifiganConfig:
    """Infer the sizes from the shapes of the tensors. Raises UserError if no official version has these shapes."""

    def shape(key: str) -> tuple[int, ...]:
        source = sources(f"{key}.weight", entries)
        value = entries[source[-1]] if source else None
        if not isinstance(value, torch.Tensor) or value.ndim != 3:
            raise UserError(
                f"{path} is not a HiFi-GAN generator: {key}.weight is missing, or is not the kernel of a convolution"
            )
        return tuple(value.shape)

    def count(pattern: str) -> int:
        return 1 + max((int(found[1]) for key in entries if (found := re.match(pattern, key))), default=-1)

    ups, blocks = count(r"ups\.(\d+)\."), count(r"resblocks\.(\d+)\.")
    kind, first = ("1", "convs1") if any(".convs1." in key for key in entries) else ("2", "convs")
    kernels = tuple(shape(f"ups.{level}")[2] for level in range(ups))
    sizes = tuple(shape(f"resblocks.{block}.{first}.0")[2] for block in range(blocks // ups if ups else 0))
    channels, bands, _ = shape("conv_pre")
    try:
        dilations = tuple(DILATIONS[kind, size] for size in sizes)
    except KeyError:
        raise UserError(
            f"{path}: no official version has blocks with kernels of {', '.join(map(str, sizes))}: "
            f"put the model's {CONFIG_FILE} next to the file"
        ) from None
    return MelHifiganConfig(bands, kind, tuple(kernel // 2 for kernel in kernels), kernels, channels, sizes, dilations)
