"""Open a bundle by its name or path."""

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

DEMO = "demo"  # the small Tortoise
DEFAULT_BUNDLE = "heart"  # speaks unless a request names another bundle
FORMER_NAMES = {"demo-fast": DEFAULT_BUNDLE}  # former name of an embedded bundle → its name
EMBEDDED = {DEMO: "bundle", DEFAULT_BUNDLE: "heart"}  # the bundles in the package: name → folder in ane/demo


def demo_bundle(name: str = DEMO) -> Path:
    """Return the directory of an ``EMBEDDED`` bundle."""
    return Path(str(resources.files("ane").joinpath("demo", EMBEDDED[name])))


def is_embedded(folder: Path | None) -> bool:
    """Return whether the directory is the directory of an ``EMBEDDED`` bundle."""
    return any(folder == demo_bundle(name) for name in EMBEDDED)


def bundle_names() -> list[str]:
    """Return the names that ``--bundle`` knows: the embedded bundles, and the bundles in the data directory."""
    stored = paths.bundles_dir()
    names = sorted(path.parent.name for path in stored.glob("*/bundle.json")) if os.path.isdir(stored) else []
    return [*EMBEDDED, *(name for name in names if name not in EMBEDDED)]


def is_path(text: str | Path) -> bool:
    """Return whether the text is a bundle's path ("./x", "a/b", "/x", "~/x") and not a bare name ("x")."""
    text = str(text)
    return text in (".", "..") or text.startswith("~") or "/" in text or os.sep in text


def find_bundle(bundle: str | Path | None) -> Path:
    """Return a bundle's directory by path or name. Raises UserError if there is none.

    Args:
        bundle: A path or a name. ``None`` means ``DEFAULT_BUNDLE``.
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
    """Return the path for a new bundle that ``find_bundle`` will find by the same text.

    Args:
        text: A path, or a name in the data directory.

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
    """Open a bundle by name or path. ``None`` means ``DEFAULT_BUNDLE``. Weights are read later.

    Raises:
        UserError: The name is unknown, there is no bundle, or it is damaged.
    """
    return Bundle(find_bundle(bundle))


def family_of_checkpoints(path: Path) -> ModelFamily:
    """Return the family that the checkpoints at ``path`` belong to, judged by their content.

    For a directory that no family recognises, return ``DEFAULT_FAMILY``.

    Raises:
        UserError: A file is damaged, or belongs to no family.
    """
    family = recognised_family(path)
    if family is None and path.is_file():
        from ane.bundles.torch_checkpoint import unknown_checkpoint

        raise unknown_checkpoint(path)
    return family or find_family()


def read_constructor_arguments(path: Path) -> dict[str, Any]:
    """Read upstream's constructor arguments by file from JSON. Raises UserError if it is not a JSON object."""
    arguments = read_json(path)
    if not isinstance(arguments, dict):
        raise UserError(
            f'{path} must be an object like {{"autoregressive.pth": {{"layers": 30}}}}, or for FastSpeech '
            '{"padding": "exact"}'
        )
    return arguments


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--bundle``. Pass its value to ``open_model``."""
    parser.add_argument(
        "--bundle",
        metavar="NAME|PATH",
        help=f"bundle to use: a name (as in `ane import`) or a directory (default: {DEFAULT_BUNDLE}, embedded)",
    )
