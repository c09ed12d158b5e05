"""The encoder on its fixed-shape function. The windows of a batch are run one by one."""

import numpy as np

from ane.backends.base import FunctionSet


def run_encoder(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Mel (B, M, 2N) → states (B, N, D) float32. Raises ValueError for another number of frames."""
    function, = package.functions(stage)
    mel, frames = inputs["mel"], 2 * function.bucket["states"]
    if mel.shape[-1] != frames:
        raise ValueError(f"mel must have {frames} frames, got {mel.shape[-1]}")
    return np.stack([function(mel=row[None, :, None])["states"][0, :, 0].T for row in mel])
