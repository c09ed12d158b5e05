"""Official checkpoints, a directory or one file, used as they are: upstream's keys."""

import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from ane.bundles.entries import assemble, load_pickle
from ane.bundles.hashes import identity_of, size_and_time
from ane.bundles.model import Model, read_tokenizer
from ane.bundles.opening import read_constructor_arguments
from ane.bundles.surplus import Surplus
from ane.bundles.weights import PRECISION_NAMES
from ane.models.tortoise.checkpoint_files import (
    BIGVGAN,
    MEL_NORMS,
    OFFICIAL,
    bigvgan_arguments,
    check_complete,
    check_vocabulary,
    check_vocoder,
    find_files,
    is_official_config,
    read_entries,
    settings_of_tokenizer,
    states_vocabulary,
    with_vocabulary,
)
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.upstream_keys import (
    check_surplus,
    configs,
    held_files,
    is_unneeded,
    match,
    networks_of,
    official_entries,
)
from ane.system.errors import UserError

FILES = (*OFFICIAL, "tokenizer.json", MEL_NORMS)


def source_files(path: Path, base: Model | None = None, vocoder: Path | None = None) -> dict[str, Path]:
    """Every file at ``path`` that is read, by its official name. Raises UserError when a required one is missing."""
    files = find_files(path)
    check_complete(path, files, base)
    folder = next(iter(files.values()), path).parent
    files |= {BIGVGAN: vocoder} if vocoder else {}
    return {**files, **{name: folder / name for name in ("tokenizer.json", MEL_NORMS) if os.path.isfile(folder / name)}}


def packaged_file(name: str) -> Path:
    """A data file of this package, used where the checkpoint directory has none."""
    return Path(str(resources.files("ane.models.tortoise").joinpath("data", name)))


class CheckpointDirectory(Model):
    """The official .pth files of one directory, or one of them.

    A tokenizer.json and a mel_norms.pth beside the checkpoints replace those of this package. Files of other names, and
    one file alone, are known by their keys (``ane.models.tortoise.checkpoint_files``).

    Args:
        config: upstream's constructor arguments, {"autoregressive.pth": {"layers": 30, …}, …}; None: those in the
            directory's config.json, or else those of ``base``, or the official values. The key "trained": false marks
            random weights. Where they do not state it, the vocabulary is that of the weights.
        where: name of ``config`` in messages.
        vocoder: a BigVGAN that speaks in place of UnivNet, its JSON beside it.
        base: a model whose networks are used where the checkpoints have none, as for a fine-tuned decoder alone.
        ignore_unknown: Whether ``check`` accepts entries of which this version does not know what they are for.

    Raises:
        UserError: a required file is missing, or the arguments are not upstream's.
    """

    def __init__(self, path: Path | str, config: Mapping[str, Any] | None = None, where: str = "the given config",
                 base: Model | None = None, vocoder: Path | None = None, ignore_unknown: bool = False):
        self.name, self.base, self.ignore_unknown = str(path), base, ignore_unknown
        self.files = find_files(Path(path))
        self.path = next(iter(self.files.values()), Path(path)).parent
        check_complete(Path(path), self.files, base)
        if vocoder:
            check_vocoder(vocoder)
            self.files[BIGVGAN] = vocoder
        own = frozenset(name for file in self.files for name in networks_of(file))
        self.networks = own | (base.networks if base else frozenset())
        if config is None and is_official_config(beside := self.path / "config.json"):
            config, where = read_constructor_arguments(beside), str(beside)
        stated = dict(config or {})
        if BIGVGAN in self.files and (beside := bigvgan_arguments(self.files[BIGVGAN])):
            stated.setdefault(BIGVGAN, beside)
        self._configs = configs(stated, where)
        if base:
            self._configs |= {name: base.config(name) for name in base.networks if name not in own
                              or (config is None and NETWORKS[name].file not in stated)}
        if "autoregressive" in own and not states_vocabulary(config or {}):
            entries, _ = self._entries("autoregressive.pth")
            self._configs["autoregressive"] = with_vocabulary(self._configs["autoregressive"], entries)
        self._own = own
        self.trained = (config or {}).get("trained", True) is not False and (base is None or base.trained)
        self.settings = {**(base.settings if base else {}), **settings_of_tokenizer(self.tokenizer)}
        self.default_voice, self.voices = "random", self.path / "voices"
        if not os.path.isdir(self.voices):
            self.voices = base.voices if base and base.widths == self.widths else None
            self.default_voice = base.default_voice if base and self.voices else "random"

    @property
    def identity(self) -> str:
        files = (*self.files.values(), self.path / "tokenizer.json", self.path / MEL_NORMS)
        stats = [(file.name, *size_and_time(file), file.stat().st_ctime_ns) for file in files if os.path.isfile(file)]
        return identity_of((stats, sorted(self._configs.items()), self.base and self.base.identity))

    @cached_property
    def decoder_md5(self) -> str:
        if "autoregressive" not in self._own:
            return self.base.decoder_md5 if self.base else ""
        with self.files["autoregressive.pth"].open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

    @property
    def precision(self) -> str:
        """The precision of the decoder's weights (all official files are fp32)."""
        return PRECISION_NAMES[next(iter(self.tensors("autoregressive").values())).dtype]

    def config(self, network: str) -> Any:
        self.require(network)
        return self._configs[network]

    def tensors(self, network: str) -> dict[str, torch.Tensor]:
        """The network's state dict, without keys that it does not use; only weight-normed tensors are copied."""
        self.require(network)
        if self.base and network not in self._own:
            return self.base.tensors(network)
        file = NETWORKS[network].file
        entries, _ = self._entries(file)
        found = match(network, self._configs, entries, self.files[file])
        return {key: assemble(source, entries) for key, source in found.items()}

    def check(self) -> Surplus:
        """Compare every key and shape of every file with the configs, and return the entries that are not used.

        Speech does not need the parameters that inference never reads (the decoder's text_head), the buffers of older
        releases (gpt.h.N.attn.bias) and a trainer's entries beside the state dict. All others are unknown.

        Raises:
            UserError: a file is damaged, another model, or another size than its config states, it has unknown entries,
                or the tokenizer has an id that the decoder does not know.
        """
        check_vocabulary(self.tokenizer, self._configs["autoregressive"].number_text_tokens, self.path)
        surplus = Surplus()
        for path in dict.fromkeys(self.files.values()):
            held = [file for file in self.files if self.files[file] == path]
            entries, beside = self._entries(held[0])
            used: set[str] = set()
            networks = [name for file in held for name in networks_of(file)]
            for name in networks:
                found = match(name, self._configs, entries, path)
                used.update(part for source in found.values() for part in source)
            check_surplus(entries, used, path)
            surplus.add(held[0], (key for key in entries if key not in used),
                        lambda key, networks=networks: is_unneeded(key, networks, self._configs), beside)
        if not self.ignore_unknown:
            surplus.refuse_unknown()
        return surplus

    @property
    def tokenizer(self) -> str:
        own = self.path / "tokenizer.json"
        if self.base and not os.path.isfile(own):
            return self.base.tokenizer
        return read_tokenizer(own if os.path.isfile(own) else packaged_file("tokenizer.json"))

    @property
    def mel_norms(self) -> np.ndarray:
        own = self.path / MEL_NORMS
        if self.base and not os.path.isfile(own):
            return self.base.mel_norms
        if not os.path.isfile(own):
            return load_file(packaged_file("mel_norms.safetensors"))["mel_norms"]
        norms = load_pickle(own)
        if not isinstance(norms, torch.Tensor) or tuple(norms.shape) != (80,) or not norms.is_floating_point():
            raise UserError(f"{own} must be one tensor of 80 floats, as upstream's data/mel_norms.pth is")
        if not torch.isfinite(norms).all() or (norms == 0).any():
            raise UserError(f"{own} has zero, NaN or infinite values, so no spectrogram can be divided by it")
        return norms.detach().float().numpy().copy()

    def _entries(self, file: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state dict with the networks of an official file, and the other entries of its wrappers."""
        entries, beside = read_entries(self.files[file])
        if held_files(entries):
            entries = official_entries(entries, self._configs["autoregressive"].heads)
        return entries, beside
