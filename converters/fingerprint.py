"""A digest of the code that builds graphs: packages made by other code are not reused."""

import ast
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from converters.models import MODELS

ROOT = Path(__file__).parents[1]        # the folder of the packages ``ane`` and ``converters``
SHARED_NETWORKS = "ane.models.vocoders"


def graph_fingerprint(target: str, libraries: Sequence[str], root: Path = ROOT) -> str:
    """A digest of the versions of ``libraries``, the reference networks, and the code that builds a target's graphs."""
    digest = hashlib.sha256("\n".join(libraries).encode())
    for path in graph_sources(target, root):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def graph_sources(target: str, root: Path = ROOT) -> list[Path]:
    """The files that the graphs of a target depend on, sorted.

    All of every model's networks and those that models share; the target's packager and the models' graph builders,
    with the modules of ``converters`` that they import.
    """
    packages = (SHARED_NETWORKS, *(model.networks for model in MODELS.values()))
    networks = {path for package in packages for path in (root / package.replace(".", "/")).glob("*.py")}
    return sorted(networks | _imported([f"converters.{target}.package",
                                        *(model.graphs[target] for model in MODELS.values())], root))


def _imported(modules: Iterable[str], root: Path) -> set[Path]:
    """The files of these modules and, recursively, of the modules of ``converters`` that their source imports.

    ``converters.proof`` is left out: it measures graphs, it does not change them.
    """
    found, pending = set(), list(modules)
    while pending:
        name = pending.pop()
        path = (root / name.replace(".", "/")).with_suffix(".py")
        if not name.startswith("converters.") or name.startswith("converters.proof") or path in found:
            continue
        if path.is_file():
            found.add(path)
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ImportFrom):
                    pending += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
                elif isinstance(node, ast.Import):
                    pending += [alias.name for alias in node.names]
    return found
