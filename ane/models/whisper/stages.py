"""The stages (named network calls) of Whisper, which every backend runs.

Dimension names: B batch, M mel bands, L mel frames, N states (L / 2), D width.
"""

import numpy as np

from ane.backends.base import DecoderStage, FunctionSet, ModelStages, Stage, TensorSpec


def run_encoder(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged``: mel (B, M, 2N) → states (B, N, D) float32, the windows of a batch one by one.

    Raises:
        ValueError: the function takes another number of frames.
    """
    function, = package.functions(stage)
    mel, frames = inputs["mel"], 2 * function.bucket["states"]
    if mel.shape[-1] != frames:
        raise ValueError(f"mel must have {frames} frames, got {mel.shape[-1]}")
    return np.stack([function(mel=row[None, :, None])["states"][0, :, 0].T for row in mel])


ENCODER = Stage("encoder", {"mel": TensorSpec(("B", "M", "L"))}, TensorSpec(("B", "N", "D")),
                packaged=run_encoder)

TEXT_DECODER = DecoderStage("decoder", {
    "token": "token_embedding.weight",
    "position": "positional_embedding",
}, tied=("token",))

WHISPER_STAGES = ModelStages({"encoder": ENCODER}, TEXT_DECODER)
