"""Find and open a bundle by its name or path."""

import argparse
import difflib
import os
from importlib import resources
from pathlib import Path
from typing import Any

from ane.bundles.bundle import Bundle
from ane.bundles.family import DEFAULT_FAMILY, ModelFamily, find_family, recognised_family
from ane.system import paths
from ane.system.errors import NotFoundError, UserError
from ane.system.files import check_folder_of, read_json

DEMO = "demo"  # name of the embedded bundle with a small Tortoise
DEFAULT_BUNDLE = "heart"  # bundle that speaks if a request names none
FORMER_NAMES = {"demo-fast": DEFAULT_BUNDLE}  # former name of an embedded bundle → present name
EMBEDDED = {DEMO: "bundle", DEFAULT_BUNDLE: "heart"}  # bundle that this Python package contains → folder in ane/demo


def demo_bundle(name: str = DEMO) -> Path:
    """Return the directory of a bundle in ``EMBEDDED``."""
    return Path(str(resources.files("ane").joinpath("demo", EMBEDDED[name])))


def is_embedded(folder: Path | None) -> bool:
    """Return whether ``folder`` is the directory of a bundle in ``EMBEDDED``."""
    return any(folder == demo_bundle(name) for name in EMBEDDED)


def bundle_names() -> list[str]:
    """List the names that you can pass to ``--bundle``: embedded bundles, and bundles in the data directory."""
    stored = paths.bundles_dir()
    names = sorted(path.parent.name for path in stored.glob("*/bundle.json")) if os.path.isdir(stored) else []
    return [*EMBEDDED, *(name for name in names if name not in EMBEDDED)]


def is_path(text: str | Path) -> bool:
    """Return whether the text is a path of a bundle ("./x", "a/b", "/x", "~/x") and not a bare name ("x")."""
    text = str(text)
    return text in (".", "..") or text.startswith("~") or "/" in text or os.sep in text


def find_bundle(bundle: str | Path | None) -> Path:
    """Return the directory of a bundle. Raises UserError if there is no such bundle.

    Args:
        bundle: Path or name of the bundle. ``None`` means ``DEFAULT_BUNDLE``.
    """
    if str(bundle) in FORMER_NAMES and bundle not in bundle_names():
        bundle = FORMER_NAMES[str(bundle)]
    if bundle is None or str(bundle) in EMBEDDED:
        return demo_bundle(str(bundle or DEFAULT_BUNDLE))
    if isinstance(bundle, Path) or is_path(bundle):
        return Path(os.path.expanduser(bundle))
    names = bundle_names()
    if bundle in names:
        return paths.bundles_dir() / bundle
    if os.path.exists(bundle):
        return Path(bundle)
    near = difflib.get_close_matches(bundle, names, 3)
    advice = f"do you mean {' or '.join(near)}?" if near else f"known bundles: {', '.join(names)}"
    if bundle == DEFAULT_FAMILY:
        advice += f". To make it from the official weights, run `ane import hub -o {bundle}`"
    raise NotFoundError(f"no bundle is named {bundle!r} in {paths.bundles_dir()}: {advice}")


def new_bundle(text: str) -> Path:
    """Return the path at which to write a new bundle, so that ``find_bundle`` will find it by the same text.

    Args:
        text: Path of the bundle, or its name in the data directory.

    Raises:
        UserError: The text is the name of an embedded bundle, or a path in a folder that does not exist.
    """
    if is_path(text):
        path = Path(os.path.expanduser(text))
        check_folder_of(path)
        return path
    if text in EMBEDDED or text in FORMER_NAMES:
        raise UserError(f"the name {text} belongs to an embedded bundle: choose another")
    return paths.bundles_dir() / text


def open_model(bundle: str | Path | None = None) -> Bundle:
    """Open a bundle without reading its weights.

    Args:
        bundle: Path or name of the bundle. ``None`` means ``DEFAULT_BUNDLE``.

    Raises:
        UserError: The bundle does not exist or is damaged.
    """
    return Bundle(find_bundle(bundle))


def family_of_checkpoints(path: Path) -> ModelFamily:
    """Return the family whose checkpoints are at ``path``, judged by their content.

    If no family recognises a directory, it counts as ``DEFAULT_FAMILY``.

    Raises:
        UserError: A file is damaged, or ``path`` is a file that no family recognises.
    """
    family = recognised_family(path)
    if family is None and path.is_file():
        from ane.bundles.state_dicts import unknown_checkpoint

        raise unknown_checkpoint(path)
    return family or find_family()


def read_constructor_arguments(path: Path) -> dict[str, Any]:
    """Read official constructor arguments for each checkpoint file from JSON.

    Raises UserError if the JSON is not an object.
    """
    arguments = read_json(path)
    if not isinstance(arguments, dict):
        raise UserError(
            f'{path} must be an object like {{"autoregressive.pth": {{"layers": 30}}}}, or for FastSpeech '
            '{"padding": "exact"}'
        )
    return arguments


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--bundle``, whose value you can pass to ``open_model``."""
    parser.add_argument(
        "--bundle",
        metavar="NAME|PATH",
        help="bundle to use: a name (as in `ane import`) or a directory. `ane say --bundle '?'` lists the names "
        f"(default: {DEFAULT_BUNDLE}, embedded)",
    )
