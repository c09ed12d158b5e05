"""The model that speaks: the interface that a bundle and a directory of official checkpoints both fulfil."""

import argparse
import difflib
import json
import os
from abc import ABC, abstractmethod
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane import places
from ane.errors import UserError

if TYPE_CHECKING:       # torch takes a second to import, and every command's --help passes here
    import numpy as np
    import torch

DEMO = "demo"


class Model(ABC):
    """Configs, weights, tokenizer and mel norms of one model. A network's weights are read when they are asked for.

    Attributes:
        name: what messages call it.
        identity: hexadecimal digest that changes when weights or configs do; a key for caches.
        networks: names (of ``ane.networks.NETWORKS``) of the networks it has.
        precision: "fp32", "fp16" or "bf16", the type its parameters are stored in.
        trained: False when the weights are random numbers.
        default_voice: the voice to speak with when none is named.
        voices: directory of the voices that come with it, or None.
    """

    name: str
    identity: str
    networks: frozenset[str]
    trained: bool
    default_voice: str
    voices: Path | None

    @property
    @abstractmethod
    def precision(self) -> str: ...

    @abstractmethod
    def config(self, network: str) -> Any:
        """The config dataclass of a network. Raises UserError when the model lacks the network."""

    @abstractmethod
    def tensors(self, network: str) -> "dict[str, torch.Tensor]":
        """Exactly the network's state dict, on the CPU, memory-mapped where the file allows it: do not write to it.

        Raises:
            UserError: the model lacks the network, or its file is damaged or does not fit the config.
        """

    @property
    @abstractmethod
    def tokenizer(self) -> str:
        """The tokenizer as Hugging Face ``tokenizers`` JSON."""

    @property
    @abstractmethod
    def mel_norms(self) -> "np.ndarray":
        """(80,) float32: divisors of the decoder's log-mel conditioning, band by band (upstream data/mel_norms.pth)."""

    @property
    def widths(self) -> tuple[int, int]:
        """Widths of the two latents of a voice: the decoder's D and the diffusion decoder's C = 2 × its channels."""
        return self.config("autoregressive").model_dim, 2 * self.config("diffusion").model_channels

    def require(self, network: str) -> None:
        """Raise UserError, naming upstream's file, when the model lacks ``network``."""
        from ane.networks import NETWORKS

        if network not in self.networks:
            raise UserError(f"{self.name} has no {network} network: {NETWORKS[network].file} was not among its "
                            "checkpoints; add that file and, for a bundle, import again")


def read_tokenizer(text: str, where: Path) -> str:
    """Hand ``text`` back once it is known to be a tokenizer's JSON. Raises UserError when it is not."""
    try:
        known = isinstance(json.loads(text)["model"]["vocab"], dict)
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise UserError(f"{where} is not a tokenizer.json of Hugging Face tokenizers (no model.vocab in it)")
    return text


def demo_bundle() -> Path:
    """The bundle that ships inside the package."""
    return Path(str(resources.files("ane").joinpath("demo/bundle")))


def bundle_names() -> list[str]:
    """Names that ``--bundle`` knows: the demo, and the bundles in the data directory."""
    stored = places.bundles_dir()
    found = sorted(path.parent.name for path in stored.glob("*/bundle.json")) if stored.is_dir() else []
    return [DEMO, *(name for name in found if name != DEMO)]


def is_path(text: str | Path) -> bool:
    """Whether a bundle is given as a path ("./x", "a/b", "/x", "~/x") and not as a bare name ("x")."""
    text = str(text)
    return text in (".", "..") or text.startswith("~") or "/" in text or os.sep in text


def find_bundle(bundle: str | Path | None) -> Path:
    """The directory of a bundle given by path or by name; None is the demo. Raises UserError when there is none."""
    if bundle is None or str(bundle) == DEMO:
        return demo_bundle()
    if isinstance(bundle, Path) or is_path(bundle):
        return Path(bundle).expanduser()
    names = bundle_names()
    if bundle in names:
        return places.bundles_dir() / bundle
    if Path(bundle).is_dir():
        return Path(bundle)
    near = difflib.get_close_matches(bundle, names, 3)
    advice = f"do you mean {' or '.join(near)}?" if near else f"known bundles: {', '.join(names)}"
    raise UserError(f"no bundle is named {bundle!r} in {places.bundles_dir()}; {advice}")


def open_model(bundle: str | Path | None = None, checkpoints: str | Path | None = None,
               config: Path | None = None) -> Model:
    """Open a bundle (by name or path; the demo when nothing is given) or a directory of official checkpoints.

    ``config`` is a JSON file of upstream's constructor arguments for the checkpoints, in place of their config.json.
    All keys and shapes are held against the configs here, so a model that opens is complete; data is read later.

    Raises:
        UserError: unknown name, no such directory, a bundle or checkpoint that is damaged or does not fit.
    """
    if checkpoints is None:
        if config is not None:
            raise UserError(f"the constructor arguments in {config} are for checkpoints; a bundle has its own")
        from ane.bundle import Bundle

        return Bundle(find_bundle(bundle))
    if bundle is not None:
        raise UserError("give a bundle or a directory of checkpoints, not both")
    from ane.checkpoints import CheckpointDirectory, read_config

    model = CheckpointDirectory(checkpoints, None if config is None else read_config(config), str(config))
    model.check()
    return model


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--bundle`` and ``--checkpoints``, whose values ``open_model`` takes under the same names."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--bundle", metavar="NAME|PATH",
                       help="bundle to use: a name (as in `ane import`) or a directory (default: the embedded demo)")
    group.add_argument("--checkpoints", metavar="DIR", type=Path,
                       help="directory of official .pth files to use as they are, without importing them")
