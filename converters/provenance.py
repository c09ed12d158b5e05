"""Where what is converted comes from: what a model passes on of itself, and the hashes of its weights."""

from typing import Any

from ane.bundles import Model
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of
from ane.models.tortoise.networks import NETWORKS


def described(model: Model) -> dict[str, Any]:
    """Licence, description and source that a conversion of ``model`` passes on."""
    if not isinstance(model, Bundle):
        return {"licence": "", "description": "", "source": {"checkpoints": str(model.path)}}
    manifest = model.manifest
    return {"licence": manifest.licence, "description": manifest.description, "source": manifest.source}


def weights_sha256(model: Model, network: str) -> str:
    """SHA-256 of the file that a network's weights lie in: as a bundle states it, or of a checkpoint read whole."""
    if isinstance(model, Bundle):
        return model.manifest.networks[network].weights.sha256
    return sha256_of(model.path / NETWORKS[network].file)
