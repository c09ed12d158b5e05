"""What a conversion is made from: the model with its weights, and the code that builds graphs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ane.bundles import Model
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of
from converters.functions import models

ROOT = Path(__file__).parents[1]        # the folder of the packages ``ane`` and ``converters``
SHARED_NETWORKS = "ane.models.vocoders"
# files and folders of ``converters`` that do not change a graph
NO_GRAPHS = frozenset({"proof", "swift", "coreai.py", "conversion.py", "probes.py"})


def provenance_of(model: Model) -> dict[str, Any]:
    """Licence, description and source, which a conversion of ``model`` keeps."""
    if not isinstance(model, Bundle):
        return {"licence": "", "description": "", "source": {"checkpoints": str(model.path)}}
    manifest = model.manifest
    return {"licence": manifest.licence, "description": manifest.description, "source": manifest.source}


def weights_sha256(model: Model, network: str) -> str:
    """SHA-256 of the file with a network's weights: as a bundle states it, or computed for a checkpoint."""
    if isinstance(model, Bundle):
        return model.manifest.networks[network].weights.sha256
    return sha256_of(model.path / model.family.networks[network].file)


def graph_fingerprint(libraries: Sequence[str], root: Path = ROOT) -> str:
    """A digest of versions of ``libraries`` and of ``graph_sources``: packages made by other code are not reused."""
    digest = hashlib.sha256("\n".join(libraries).encode())
    for path in graph_sources(root):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def graph_sources(root: Path = ROOT) -> list[Path]:
    """The reference networks of every model, and the modules of ``converters`` that build graphs; sorted."""
    packages = (SHARED_NETWORKS, *(model.networks for model in models().values()))
    networks = {path for package in packages for path in (root / package.replace(".", "/")).glob("*.py")}
    builders = {path for path in (root / "converters").rglob("*.py")
                if not NO_GRAPHS.intersection(path.relative_to(root).parts)}
    return sorted(networks | builders)
