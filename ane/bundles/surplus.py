"""Find the entries and files of checkpoints that an import leaves out, because no network needs them.

Some of these entries are unknown. An unknown entry, such as an adapter's weight, may change the sound. So the import
stops at unknown entries, unless the user allows it to leave them out.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ane.bundles.hub import CHECKPOINTS
from ane.system.errors import UserError

# names of the entries in which trainers store their own tensors, next to the state dict
SIDE = "(g|d|gen|disc|generator|discriminator)"  # a GAN has an optimiser for each of its two networks
TRAINER = re.compile(
    rf"({SIDE}_)?(optim(izer)?s?|(lr_)?sched(uler)?s?|((grad|amp)_)?scalers?)(_{SIDE}|_\d+)?(_state(s|_dict)?)?"
    r"|((torch|cuda|numpy|python|random|cpu)_)?rng(_states?)?|((native_)?amp_scaling_state|amp)|loops|callbacks"
    r"|discriminators?(_state_dict)?|model_d|mpd|msd|mrd|((global|current)_)?(epochs?|steps?|iterations?)|best_loss",
    re.IGNORECASE,
)
WEIGHTS = (*CHECKPOINTS, ".bin")  # suffixes of files that may contain weights
UNREADABLE = "a file that cannot be read"


@dataclass(frozen=True)
class Surplus:
    """The names of the entries (named tensors) and files that an import leaves out.

    Attributes:
        unneeded: Entries that speech does not need, by file.
        unknown: Entries that may change the sound, by file. All entries of an adapter's file (such as a LoRA) are
            unknown.
        adapters: Files whose names say that they are adapters.
        unread: Other weight files that the import does not read.
    """

    unneeded: dict[str, list[str]] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    adapters: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def add(
        self,
        file: str,
        unused: Iterable[str],
        is_unneeded: Callable[[str], object],
        siblings: Mapping[str, Any] | None = None,
    ) -> None:
        """Add the entries of a file that no network needs.

        Args:
            file: Name of the file, for messages.
            unused: Entries of the state dict that no network needs.
            is_unneeded: Function that returns whether speech certainly does not need an entry.
            siblings: Entries of the file next to the state dict. They are unneeded if they contain no tensors except
                states of random generators, or belong to a trainer. An adapter's tensors are always unknown.
        """
        from ane.bundles.torch_checkpoint import is_adapter, is_random_state, tensors_in  # imports torch

        known: dict[str, bool] = {}
        for name, value in (siblings or {}).items():
            keys = [key for key, tensor in tensors_in({name: value}) if not is_random_state(tensor)]
            factors = [key for key in keys if is_adapter(key)]
            known |= dict.fromkeys(factors, False) or {name: not keys or bool(TRAINER.fullmatch(name))}
        known |= {name: bool(is_unneeded(name)) for name in unused}
        for names, wanted in ((self.unneeded, True), (self.unknown, False)):
            if chosen := [name for name in known if known[name] == wanted]:
                names[file] = [*names.get(file, ()), *chosen]

    def add_files(self, folder: Path, used: Iterable[Path]) -> None:
        """Add the files with weights in ``folder`` and in its subfolder models/, except those in ``used``."""
        from ane.bundles.torch_checkpoint import is_adapter

        read = {path.resolve() for path in used}
        for file in sorted(
            file
            for place in (folder, folder / "models")
            for file in place.glob("*")
            if file.suffix.lower() in WEIGHTS and os.path.isfile(file) and file.resolve() not in read
        ):
            name, keys = file.relative_to(folder).as_posix(), _tensor_names(file)
            factors = [key for key in keys if is_adapter(key)]
            if is_adapter(file.name):
                self.adapters.append(name)
            if factors or is_adapter(file.name):
                self.unknown[name] = factors or keys or [UNREADABLE]
            else:
                self.unread.append(name)

    def refuse_unknown(self) -> None:
        """Raise UserError if there are unknown entries. The message lists these entries."""
        if not self.unknown:
            return
        from ane.bundles.torch_checkpoint import MERGE, SHOWN, is_adapter

        text = summarise_files(self.unknown, SHOWN)
        if self.adapters or any(is_adapter(name) for names in self.unknown.values() for name in names):
            raise UserError(
                f"the weights of an adapter (LoRA or similar) are not applied here: {text}. Either {MERGE}, or "
                "import it without them: ignore_unknown=True. Pass PEFT's file of a LoRA for Tortoise as lora=FILE"
            )
        raise UserError(
            f"this version does not know these entries: {text}. The model may sound different without them. "
            "To leave them out: ignore_unknown=True"
        )


def _tensor_names(file: Path) -> list[str]:
    """Return the names of the tensors in a file. The list is empty if the file cannot be read as a checkpoint."""
    from ane.bundles.torch_checkpoint import load_pickle, read_safetensors, tensors_in

    try:
        content = read_safetensors(file) if file.suffix.lower() == ".safetensors" else load_pickle(file)
    except UserError:
        return []
    return [name for name, _ in tensors_in(content)]


def summarise_files(names: Mapping[str, Iterable[str]], most: int | None = None) -> str:
    """List entries by file, with at most ``most`` names per file, such as "a.pth: 2 × x.N.bias, y; b.pth: z"."""
    from ane.bundles.torch_checkpoint import summarise_keys

    return "; ".join(
        f"{file}: {summarise_keys(keys, *([] if most is None else [most]))}" for file, keys in names.items()
    )
