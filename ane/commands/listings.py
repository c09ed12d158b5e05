"""Print the values that a flag takes, if the user gave "?" as its value: the voices or the presets of a model."""

import argparse

from ane.bundles import open_model
from ane.bundles.opening import DEMO
from ane.commands.messages import LOGGER, print_listing
from ane.commands.voices import list_command
from ane.system.errors import UserError


def printed_values(args: argparse.Namespace) -> bool:
    """Print the values of the flag whose value is "?". Return whether there is such a flag."""
    for flag, print_values in {"voice": list_command, "preset": list_presets}.items():
        if getattr(args, flag) == "?":
            print_values(args)
            return True
    return False


def list_presets(args: argparse.Namespace) -> None:
    """Print upstream's presets, then ours, with the work that each preset does per chunk. Mark the model's default."""
    from ane.models.tortoise.settings import PRESETS, default_preset

    model = open_model(args.bundle)
    if not model.presets:
        raise UserError(f"{model.name} has no presets: add --bundle with a Tortoise model, such as {DEMO}")
    default = default_preset(model.settings)
    for title, upstream in (("upstream's presets", True), ("our presets", False)):
        rows = [
            (f"{name} (default)" if name == default else name, preset.work)
            for name, preset in PRESETS.items()
            if preset.upstream == upstream
        ]
        print_listing(title, "work for each chunk", rows=rows)
    LOGGER.info("A guided step runs the denoiser twice.")
