"""WaveGlow as NVIDIA publishes it: a file of torch.save with ``state_dict``, whose keys may start with "module."."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.entries import Entries, assemble, match_entries, sources
from ane.bundles.family import Network
from ane.bundles.weights import layout
from ane.models.vocoders.waveglow import WaveglowConfig
from ane.system.errors import UserError

INVERSE = re.compile(r"convinv\.\d+\.conv\.weight")
WRONG_KIND = "this is no WaveGlow of NVIDIA's examples, or a damaged one"


class WaveglowCheckpoint:
    """A WaveGlow checkpoint; its sizes are read from its tensors.

    Args:
        content: of the file at ``path``.
        network: what the family that it speaks for declares of it.

    Attributes:
        unused: entries of the file that the network does not use.

    Raises:
        UserError: damaged, or of sizes that do not fit together or to FastSpeech's mels.
    """

    def __init__(self, path: Path, content: Mapping[Any, Any], network: Network):
        self.path, self.network = path, network.name
        self._entries = waveglow_entries(content)
        self.config = infer_config(self._entries, path)
        self.config.check(str(path))
        self._found = match_entries(layout(network, self.config).shapes, self._entries, path, lambda key: WRONG_KIND,
                                    lambda: "the sizes of its tensors do not fit together; the file is damaged")
        used = {part for source in self._found.values() for part in source}
        self.unused = [*(str(key) for key in content if key != "state_dict" and "state_dict" in content),
                       *(key for key in self._entries if key not in used)]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state dict, weight norm folded in, the 1×1 convolutions inverted.

        Raises:
            UserError: one of them has no inverse.
        """
        tensors = {key: assemble(source, self._entries) for key, source in self._found.items()}
        for key in filter(INVERSE.fullmatch, tensors):
            try:
                tensors[key] = tensors[key][..., 0].double().inverse().float()[..., None]
            except RuntimeError as error:
                raise UserError(f"{self.path}: {key} has no inverse: the file is damaged") from error
        return tensors


def is_waveglow(content: Any) -> bool:
    """Whether the content of a file is a WaveGlow."""
    return isinstance(content, Mapping) and any(key.startswith("convinv.") for key in waveglow_entries(content))


def waveglow_entries(content: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    """The state dict, without the prefix "module."."""
    entries = content.get("state_dict", content)
    return {str(key).removeprefix("module."): value for key, value in entries.items()} if isinstance(
        entries, Mapping) else {}


def infer_config(entries: Entries, path: Path) -> WaveglowConfig:
    """The sizes, from the shapes of the tensors. Raises UserError when one that states a size is missing."""
    def shape(key: str) -> tuple[int, ...]:
        source = sources(f"{key}.weight", entries)
        value = entries[source[-1]] if source else None
        if not isinstance(value, torch.Tensor) or value.ndim != 3:
            raise UserError(f"{path}: {key}.weight is missing or no kernel: {WRONG_KIND}")
        return tuple(value.shape)

    def count(pattern: str) -> int:
        return 1 + max((int(found[1]) for key in entries if (found := re.match(pattern, key))), default=-1)

    flows = count(r"convinv\.(\d+)\.")
    channels = [shape(f"convinv.{flow}.conv")[0] for flow in range(flows)]
    early = next((flow for flow in range(flows) if channels[flow] < channels[0]), flows)
    bands, _, kernel = shape("upsample")
    _, width, size = shape("WN.0.in_layers.0")
    return WaveglowConfig(bands, flows, channels[0], early, channels[0] - channels[early] if early < flows else 2,
                          count(r"WN\.0\.in_layers\.(\d+)\."), width, size, kernel)
