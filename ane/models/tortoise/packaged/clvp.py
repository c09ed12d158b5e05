"""CLVP on fixed-shape functions: the stages clvp_text and clvp_speech."""

from collections.abc import Sequence

import numpy as np

from ane.backends.base import FunctionSet
from ane.backends.packaged.functions import PackageFunction, pad_last_axis, sequence_masks, smallest_fitting
from ane.system.errors import UserError


class ClvpEncoder:
    """The text or the speech encoder; rows of a batch are encoded one by one.

    Args:
        functions: of the kind clvp_text or clvp_speech.
        table: embeddings (ids, width) float32.
        factor: length of the vectors returned: exp(temperature) for the text, 1 for the speech.
        what: name of the input in messages, "the text" or "the speech".
    """

    def __init__(self, functions: Sequence[PackageFunction], table: np.ndarray, factor: float, what: str):
        self.functions, self.table, self.factor, self.what = functions, table, np.float32(factor), what

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Ids (B, T) int64 → (B, E) float32.

        Raises:
            UserError: too long for every bucket, or an id that has no embedding.
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self.table):
            raise UserError(f"{self.what} has the id {ids.max() if ids.min() >= 0 else ids.min()}, and CLVP has "
                            f"embeddings for {len(self.table)} ids")
        return np.stack([self._vector(row) for row in ids])

    def _vector(self, ids: np.ndarray) -> np.ndarray:
        function = smallest_fitting(self.functions, self.what, positions=len(ids))
        positions = function.bucket["positions"]
        x = pad_last_axis(self.table[ids].T[None, :, None], positions)
        latent = function(x=x, **sequence_masks(len(ids), positions))["latent"].reshape(-1)
        return latent / max(np.linalg.norm(latent), np.float32(1e-12)) * self.factor


def run_clvp_text(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged`` of clvp_text."""
    factor = float(np.exp(package.table("temperature")))
    return ClvpEncoder(package.functions(stage), package.table("text_emb.weight"), factor,
                       "the text")(inputs["tokens"])


def run_clvp_speech(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged`` of clvp_speech."""
    return ClvpEncoder(package.functions(stage), package.table("speech_emb.weight"), 1.0,
                       "the speech")(inputs["codes"])
