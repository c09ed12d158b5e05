"""Print the values that a flag takes, if the user gave "?" as its value: bundles, voices, formats and so on."""

import argparse
from collections.abc import Mapping

from ane.bundles import bundle_names, find_bundle, open_model
from ane.bundles.opening import DEFAULT_BUNDLE, DEMO
from ane.commands.macos_flags import FILE_FORMATS
from ane.commands.messages import LOGGER, print_listing
from ane.commands.voices import list_command
from ane.system.errors import UserError


def printed_values(args: argparse.Namespace) -> bool:
    """Print the values of the flag whose value is "?". Return whether there is such a flag."""
    for flag, print_values in {
        "bundle": list_bundles,
        "voice": list_command,
        "preset": list_presets,
        "file_format": list_file_formats,
        "data_format": list_data_formats,
        "audio_device": list_devices,
    }.items():
        if getattr(args, flag, None) == "?":
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
    items = [
        {"name": name, "default": name == default, "upstream": preset.upstream, "work": preset.work}
        for name, preset in sorted(PRESETS.items(), key=lambda item: not item[1].upstream)
    ]
    rows = [
        (str(item["name"]), "upstream" if item["upstream"] else "ane", str(item["work"]), default_mark(item))
        for item in items
    ]
    print_listing(args, ("preset", "from", "work for each chunk", ""), rows, items)
    LOGGER.info("A guided step runs the denoiser twice.")


def list_bundles(args: argparse.Namespace) -> None:
    """Print the names that ``--bundle`` takes, with their folders. Mark the bundle that speaks by default."""
    items = [
        {"name": name, "default": name == DEFAULT_BUNDLE, "folder": str(find_bundle(name))} for name in bundle_names()
    ]
    rows = [(str(item["name"]), str(item["folder"]), default_mark(item)) for item in items]
    print_listing(args, ("bundle", "folder", ""), rows, items)


def list_file_formats(args: argparse.Namespace) -> None:
    rows = [*FILE_FORMATS.items()]
    print_listing(args, ("format", "suffix"), rows, [{"name": name, "suffix": suffix} for name, suffix in rows])


def list_data_formats(args: argparse.Namespace) -> None:
    from ane.audio.sample_format import ENCODINGS

    print_listing(args, ("format",), [(name,) for name in ENCODINGS], [{"name": name} for name in ENCODINGS])


def list_devices(args: argparse.Namespace) -> None:
    from ane.audio.devices import playback_devices

    items = [{"number": number, "name": device.name} for number, device in enumerate(playback_devices())]
    rows = [(str(item["number"]), str(item["name"])) for item in items]
    print_listing(args, ("number", "device"), rows, items, numbers=(0,))


def default_mark(item: Mapping[str, object]) -> str:
    """Return the cell that marks the default, which is a column of its own so that programs can read the names."""
    return "default" if item["default"] else ""
