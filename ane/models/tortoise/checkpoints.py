"""A directory of official checkpoints, used as it is: upstream's file names, upstream's keys."""

import hashlib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from ane.bundles.entries import assemble
from ane.bundles.model import Model, read_tokenizer
from ane.bundles.opening import read_constructor_arguments
from ane.bundles.pickles import load_pickle
from ane.bundles.weights import PRECISIONS
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.upstream_config import configs
from ane.models.tortoise.upstream_keys import check_surplus, match, networks_of
from ane.system.errors import UserError

REQUIRED = ("autoregressive.pth", "diffusion_decoder.pth", "vocoder.pth", "clvp2.pth")
MEL_NORMS = "mel_norms.pth"
FILES = (*dict.fromkeys(network.file for network in NETWORKS.values()), "tokenizer.json", MEL_NORMS)
WRAPPERS = {network.wrapper for network in NETWORKS.values() if network.wrapper}


def present_files(path: Path) -> list[str]:
    """The official checkpoints in directory ``path``, by file name. Raises UserError when a required one is missing."""
    if not os.path.isdir(path):
        fault = "is a file; give its directory" if os.path.exists(path) else "does not exist"
        raise UserError(f"checkpoint directory {path} {fault}")
    names = dict.fromkeys(network.file for network in NETWORKS.values())
    present = [name for name in names if os.path.isfile(path / name)]
    missing = [name for name in REQUIRED if name not in present]
    if missing and os.path.isfile(path / "bundle.json"):
        raise UserError(f"{path} is a bundle, not a directory of checkpoints: use bundle={path}")
    if missing:
        found = f"; of the official files it has {', '.join(present)}" if present else ", nor any other checkpoint"
        raise UserError(f"{path} has no {', '.join(missing)}{found}; add the official files (or `ane import hub`)")
    return present


def source_files(path: Path) -> dict[str, Path]:
    """Every file of directory ``path`` that is read, by its name. Raises UserError when a required one is missing."""
    own = [name for name in ("tokenizer.json", MEL_NORMS) if os.path.isfile(path / name)]
    return {name: path / name for name in [*present_files(path), *own]}


def packaged_file(name: str) -> Path:
    """A data file of this package, used where the checkpoint directory has none."""
    return Path(str(resources.files("ane.models.tortoise").joinpath("data", name)))


class CheckpointDirectory(Model):
    """The official .pth files of one directory. A network whose optional file is absent is not in ``networks``.

    A tokenizer.json and a mel_norms.pth beside the checkpoints replace those of this package.

    Args:
        config: upstream's constructor arguments, {"autoregressive.pth": {"layers": 30, …}, …}; None: those in the
            directory's config.json, or else the official values. The key "trained": false marks random weights.
        where: name of ``config`` in messages.

    Raises:
        UserError: a required file is missing, or the arguments are not upstream's.
    """

    def __init__(self, path: Path | str, config: Mapping[str, Any] | None = None, where: str = "the given config"):
        self.path = Path(path)
        self.name = str(path)
        self.files = present_files(self.path)
        self.networks = frozenset(name for file in self.files for name in networks_of(file))
        if config is None:
            beside = self.path / "config.json"
            config, where = (read_constructor_arguments(beside), str(beside)) if os.path.isfile(beside) else ({}, "")
        self._configs = configs(config, where)
        self.trained = config.get("trained", True) is not False
        self.default_voice = "random"
        voices = self.path / "voices"
        self.voices = voices if os.path.isdir(voices) else None

    @property
    def identity(self) -> str:
        """Changes with the configs and with the size or time of any file; the data itself is not read."""
        files = (self.path / name for name in (*self.files, "tokenizer.json", MEL_NORMS))
        stats = [(file.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
                 for file in files if os.path.isfile(file) for stat in [file.stat()]]
        return hashlib.sha256(repr((stats, sorted(self._configs.items()))).encode()).hexdigest()

    @property
    def precision(self) -> str:
        """The precision of the decoder's weights (all official files are fp32)."""
        dtype = next(iter(self.tensors("autoregressive").values())).dtype
        return next(precision for precision, known in PRECISIONS.items() if known == dtype)

    def config(self, network: str) -> Any:
        self.require(network)
        return self._configs[network]

    def tensors(self, network: str) -> dict[str, torch.Tensor]:
        """The network's state dict, without keys that it does not use; only weight-normed tensors are copied."""
        self.require(network)
        file = NETWORKS[network].file
        entries, _ = self._entries(file)
        found = match(network, self._configs, entries, self.path / file)
        return {key: assemble(source, entries) for key, source in found.items()}

    def check(self) -> dict[str, list[str]]:
        """Compare every key and shape of every file with the configs; returns the entries that are not used.

        Returns:
            By file, the names of entries that no network uses: parameters that inference never reads (the decoder's
            text_head), buffers of older releases (gpt.h.N.attn.bias), anything beside a wrapped state dict.

        Raises:
            UserError: a file is damaged, another model, or another size than its config states.
        """
        surplus = {}
        for file in self.files:
            entries, beside = self._entries(file)
            used: set[str] = set()
            for name in networks_of(file):
                found = match(name, self._configs, entries, self.path / file)
                used.update(part for source in found.values() for part in source)
            check_surplus(entries, used, self.path / file)
            surplus[file] = [*beside, *(key for key in entries if key not in used)]
        return {file: keys for file, keys in surplus.items() if keys}

    @property
    def tokenizer(self) -> str:
        own = self.path / "tokenizer.json"
        return read_tokenizer(own if os.path.isfile(own) else packaged_file("tokenizer.json"))

    @property
    def mel_norms(self) -> np.ndarray:
        own = self.path / MEL_NORMS
        if not os.path.isfile(own):
            return load_file(packaged_file("mel_norms.safetensors"))["mel_norms"]
        norms = load_pickle(own)
        if not isinstance(norms, torch.Tensor) or tuple(norms.shape) != (80,) or not norms.is_floating_point():
            raise UserError(f"{own} must be one tensor of 80 floats, as upstream's data/mel_norms.pth is")
        if not torch.isfinite(norms).all() or (norms == 0).any():
            raise UserError(f"{own} has zero, NaN or infinite values, so no spectrogram can be divided by it")
        return norms.detach().float().numpy().copy()

    def _entries(self, file: str) -> tuple[dict[str, Any], list[str]]:
        """The state dict in ``file``, and the names of other entries of its wrapper."""
        loaded = load_pickle(self.path / file)
        if not isinstance(loaded, Mapping):
            raise UserError(f"{self.path / file} contains a {type(loaded).__name__}, not a state dict; is it a renamed "
                            "file?")
        beside: list[str] = []
        for wrapper in WRAPPERS & set(loaded):
            if isinstance(loaded[wrapper], Mapping):
                beside = [str(key) for key in loaded if key != wrapper]
                loaded = loaded[wrapper]
        return {str(key): value for key, value in loaded.items()}, beside
