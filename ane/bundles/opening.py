"""Opening a bundle by name or path."""

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
DEFAULT_BUNDLE = "heart"  # which speaks unless another is named
FORMER_NAMES = {"demo-fast": DEFAULT_BUNDLE}  # of embedded bundles
EMBEDDED = {DEMO: "bundle", DEFAULT_BUNDLE: "heart"}  # the bundles of the package: name → folder in ane/demo


def demo_bundle(name: str = DEMO) -> Path:
    """The directory of one of the ``EMBEDDED`` bundles."""
    return Path(str(resources.files("ane").joinpath("demo", EMBEDDED[name])))


def is_embedded(folder: Path | None) -> bool:
    """Whether the directory is that of one of the ``EMBEDDED`` bundles."""
    return any(folder == demo_bundle(name) for name in EMBEDDED)


def bundle_names() -> list[str]:
    """Names that ``--bundle`` knows: the embedded bundles, and those in the data directory."""
    stored = paths.bundles_dir()
    found = sorted(path.parent.name for path in stored.glob("*/bundle.json")) if os.path.isdir(stored) else []
    return [*EMBEDDED, *(name for name in found if name not in EMBEDDED)]


def is_path(text: str | Path) -> bool:
    """Whether a bundle is given as a path ("./x", "a/b", "/x", "~/x") and not as a bare name ("x")."""
    text = str(text)
    return text in (".", "..") or text.startswith("~") or "/" in text or os.sep in text


def find_bundle(bundle: str | Path | None) -> Path:
    """The directory of a bundle by path or by name; None: ``DEFAULT_BUNDLE``. Raises UserError when there is none."""
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
        advice += f"; `ane import hub -o {bundle}` makes one of the official weights"
    raise NotFoundError(f"no bundle is named {bundle!r} in {paths.bundles_dir()}; {advice}")


def new_bundle(text: str) -> Path:
    """Where to write a bundle that ``find_bundle`` finds by the same text: a path, or a name among those stored.

    Raises:
        UserError: the name of an embedded bundle, or a path in a folder that is not there.
    """
    if is_path(text):
        path = Path(os.path.expanduser(text))
        check_folder_of(path)
        return path
    if text in EMBEDDED or text in FORMER_NAMES:
        raise UserError(f"the name {text} belongs to an embedded bundle; choose another")
    return paths.bundles_dir() / text


def open_model(bundle: str | Path | None = None) -> Bundle:
    """Open a bundle by name or path; None: ``DEFAULT_BUNDLE``. Weights are read later.

    Raises:
        UserError: unknown name, no bundle there, or a damaged one.
    """
    return Bundle(find_bundle(bundle))


def family_of_checkpoints(path: Path) -> ModelFamily:
    """The family whose checkpoints are at ``path``, by their content; ``DEFAULT_FAMILY`` for any other directory.

    Raises:
        UserError: a file that is damaged, or a checkpoint of no family.
    """
    found = recognised_family(path)
    if found is None and path.is_file():
        from ane.bundles.entries import unknown_checkpoint

        raise unknown_checkpoint(path)
    return found or find_family()


def read_constructor_arguments(path: Path) -> dict[str, Any]:
    """Upstream's constructor arguments by file, from JSON. Raises UserError when it is not a JSON object."""
    arguments = read_json(path)
    if not isinstance(arguments, dict):
        raise UserError(
            f'{path} must be an object like {{"autoregressive.pth": {{"layers": 30}}}}, or for FastSpeech '
            '{"padding": "exact"}'
        )
    return arguments


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--bundle``, whose value ``open_model`` takes."""
    parser.add_argument(
        "--bundle",
        metavar="NAME|PATH",
        help=f"bundle to use: a name (as in `ane import`) or a directory (default: {DEFAULT_BUNDLE}, embedded)",
    )
