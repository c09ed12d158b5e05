"""CLVP on packages: texts and codes to vectors. The stages clvp_text and clvp_speech."""

from collections.abc import Sequence

import numpy as np

from ane.backends.packaged.functions import Function, frames, padded, smallest
from ane.system.errors import UserError


class Side:
    """One of the two encoders; rows of a batch are encoded one by one.

    Args:
        functions: of the kind clvp_text or clvp_speech. table: (ids, width) float32, the embeddings.
        factor: of the unit vectors: exp(temperature) for the text, 1 for the speech. what: as in ``smallest``.
    """

    def __init__(self, functions: Sequence[Function], table: np.ndarray, factor: float, what: str):
        self.functions, self.table, self.factor, self.what = functions, table, np.float32(factor), what

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Ids (B, T) int64 → (B, E) float32.

        Raises:
            UserError: too long for every bucket, or an id that has no embedding.
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self.table):
            raise UserError(f"{self.what} holds the id {ids.max() if ids.min() >= 0 else ids.min()}, and CLVP has "
                            f"embeddings of {len(self.table)}")
        return np.stack([self._vector(row) for row in ids])

    def _vector(self, ids: np.ndarray) -> np.ndarray:
        function = smallest(self.functions, self.what, places=len(ids))
        places = function.bucket["places"]
        x = padded(self.table[ids].T[None, :, None], places)
        latent = function(x=x, **frames(len(ids), places))["latent"].reshape(-1)
        return latent / max(np.linalg.norm(latent), np.float32(1e-12)) * self.factor
