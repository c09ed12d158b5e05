"""The entries of checkpoints that no network is computed from: those that speech does not need, and unknown ones.

An unknown entry may change the sound, as the weights of an adapter do, so a model is not imported without it unless its
user says so.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ane.system.errors import UserError

# the entries beside a state dict that hold tensors and belong to a trainer: of optimisers, of discriminators
TRAINER = re.compile(r"optim|sched|scaler|rng|loops|callbacks|discriminator|^(model_d|mpd|msd|mrd)$", re.IGNORECASE)


@dataclass(frozen=True)
class Surplus:
    """The names of those entries by file: ``unneeded`` by speech, and ``unknown``."""

    unneeded: dict[str, list[str]] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)

    def add(self, file: str, unused: Iterable[str], is_unneeded: Callable[[str], object],
            beside: Mapping[str, Any] | None = None) -> None:
        """Add the entries of a file.

        Args:
            file: Name of the file in messages.
            unused: The entries of its state dict that no network is computed from.
            is_unneeded: Tells whether speech is known not to need such an entry.
            beside: The entries next to the state dict. Without tensors in them, they hold no weights.
        """
        from ane.bundles.entries import tensors_in  # imports torch

        known: dict[str, bool] = {name: bool(TRAINER.search(name)) or next(tensors_in(value), None) is None
                                  for name, value in (beside or {}).items()}
        known |= {name: bool(is_unneeded(name)) for name in unused}
        for names, wanted in ((self.unneeded, True), (self.unknown, False)):
            if chosen := [name for name in known if known[name] == wanted]:
                names[file] = [*names.get(file, ()), *chosen]

    def refuse_unknown(self) -> None:
        """Raise UserError, naming the unknown entries, when there are any."""
        if not self.unknown:
            return
        from ane.bundles.entries import MERGE, SHOWN, is_adapter

        text = summarise_files(self.unknown, SHOWN)
        if any(is_adapter(name) for names in self.unknown.values() for name in names):
            raise UserError(f"the weights of an adapter (LoRA or similar) are not applied here: {text}; {MERGE}, or "
                            "import it without them: ignore_unknown=True")
        raise UserError(f"this version does not know what these entries are for: {text}; the model may sound different "
                        "without them; to leave them out: ignore_unknown=True")


def summarise_files(names: Mapping[str, Iterable[str]], most: int | None = None) -> str:
    """Entries by file, at most ``most`` kinds of a file: "a.pth: 2 × x.N.bias, y; b.pth: z"."""
    from ane.bundles.entries import summarise_keys

    return "; ".join(f"{file}: {summarise_keys(keys, *([] if most is None else [most]))}"
                     for file, keys in names.items())
