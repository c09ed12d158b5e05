"""The stages (named network calls) of FastSpeech.

Dimension names: B batch, T symbols, C width of the model, L mel frames, M mel bands.
"""

from ane.backends.base import ModelStages, Stage, TensorSpec
from ane.models.fastspeech.packaged import run_mel, run_text, run_vocoder, run_waveglow

SAMPLE_RATE = 22050
HOP = 256               # samples of a mel frame
HIGHEST = 8000.0        # Hz: upper end of the mel bands

# masks are 1 at a row's symbols or frames and 0 after them, where an output may be anything
STAGES = {
    # the output's last channel is the log durations, the others are the encoder's states
    "text": Stage("fastspeech", {"ids": TensorSpec(("B", "T"), "int64"), "mask": TensorSpec(("B", "T"))},
                  TensorSpec(("B", "T", "C+1")), "encode", run_text),
    # the alignment repeats the states (ane.models.fastspeech.regulator)
    "mel": Stage("fastspeech", {"states": TensorSpec(("B", "T", "C")), "alignment": TensorSpec(("B", "T", "L")),
                                "mask": TensorSpec(("B", "L"))}, TensorSpec(("B", "M", "L")), "decode", run_mel),
    "vocoder": Stage("vocoder", {"mel": TensorSpec(("B", "M", "L"))}, TensorSpec(("B", 1, "256L")),
                     packaged=run_vocoder),
    "waveglow": Stage("waveglow", {"mel": TensorSpec(("B", "M", "L")), "noise": TensorSpec(("B", 256, "L"))},
                      TensorSpec(("B", 1, "256L")), packaged=run_waveglow),
}

FASTSPEECH_STAGES = ModelStages(STAGES)
