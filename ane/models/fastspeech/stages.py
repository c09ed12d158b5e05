"""The stages (named network calls) of FastSpeech.

Dimension names: B batch, T symbols, C width of the model, L mel frames, M mel bands.
"""

from ane.backends.base import ModelStages, Stage, TensorSpec

STAGES = {
    # the output's last channel is the log durations, the others are the encoder's states
    "text": Stage("fastspeech", {"ids": TensorSpec(("B", "T"), "int64"), "mask": TensorSpec(("B", "T"))},
                  TensorSpec(("B", "T", "C+1")), "encode"),
    # the alignment repeats the states (ane.models.fastspeech.regulator)
    "mel": Stage("fastspeech", {"states": TensorSpec(("B", "T", "C")), "alignment": TensorSpec(("B", "T", "L")),
                                "mask": TensorSpec(("B", "L"))}, TensorSpec(("B", "M", "L")), "decode"),
    "vocoder": Stage("vocoder", {"mel": TensorSpec(("B", "M", "L"))}, TensorSpec(("B", 1, "256L"))),
}

FASTSPEECH_STAGES = ModelStages(STAGES)
