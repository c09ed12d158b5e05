"""The stages (named network calls) of Whisper, which every backend runs.

Dimension names: B batch, M mel bands, L mel frames, N states (L / 2), D width.
"""

from ane.backends.base import DecoderStage, ModelStages, Stage, TensorSpec
from ane.models.whisper.packaged import run_encoder

ENCODER = Stage("encoder", {"mel": TensorSpec(("B", "M", "L"))}, TensorSpec(("B", "N", "D")),
                packaged=run_encoder)

TEXT_DECODER = DecoderStage("decoder", {
    "token": "token_embedding.weight",
    "position": "positional_embedding",
}, tied=("token",))

WHISPER_STAGES = ModelStages({"encoder": ENCODER}, TEXT_DECODER)
