"""Provenance of a conversion: the model's licence, description and source, and the hashes of its weights."""

from typing import Any

from ane.bundles import Model
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of


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
