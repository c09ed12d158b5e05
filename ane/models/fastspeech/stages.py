"""The stages (named network calls) of FastSpeech.

Dimension names: B batch, T symbols, C width of the model, L mel frames, M mel bands.
"""

from collections.abc import Sequence

import numpy as np

from ane.backends.base import FunctionSet, ModelStages, Stage, TensorSpec
from ane.backends.packaged.functions import pad_last_axis, sequence_masks, smallest_fitting
from ane.models.vocoders.segments import HifiganVocoder, WaveglowVocoder


def run_text(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged`` of text. Raises UserError when a row has more symbols than the largest bucket."""
    states = package.table("word_emb.weight")[inputs["ids"]]
    return run_rows(package, stage, states, inputs["mask"], "symbols", ("states", "log_durations"))


def run_rows(package: FunctionSet, stage: str, x: np.ndarray, mask: np.ndarray, unit: str,
             outputs: Sequence[str] = ("y",)) -> np.ndarray:
    """Run each row of x (B, N, C) → (B, N, C'), zeros after its length. Raises UserError for a row that is too long.

    Args:
        unit: what a row has, as the buckets name it. outputs: of the function, side by side.
    """
    rows = []
    for row, length in zip(x, _lengths(mask), strict=True):
        function = smallest_fitting(package.functions(stage), f"the {stage}", **{unit: length})
        width = function.bucket[unit]
        found = function(x=pad_last_axis(np.ascontiguousarray(row[:length].T)[None, :, None], width),
                         inside=sequence_masks(length, width)["inside"])                    # (1, C', 1, N') each
        y = np.concatenate([found[name] for name in outputs], axis=1)[0, :, 0, :length]
        rows.append(pad_last_axis(y, x.shape[1]).T)
    return np.stack(rows)


def run_mel(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged`` of mel. Raises UserError when a row has more frames than the largest bucket."""
    functions, states, alignment = package.functions(stage), inputs["states"], inputs["alignment"]
    rows: list[np.ndarray] = []
    for row, length in enumerate(_lengths(inputs["mask"])):
        function = smallest_fitting(functions, "the speech", frames=length, symbols=states.shape[1])
        frames, symbols = function.bucket["frames"], function.bucket["symbols"]
        matrix = np.zeros((1, 1, symbols, frames), np.float32)
        matrix[0, 0, :states.shape[1], :length] = alignment[row, :, :length]
        mel = function(states=pad_last_axis(states[row].T[None, :, None], symbols), alignment=matrix,
                       inside=sequence_masks(length, frames)["inside"])["mel"]
        rows.append(pad_last_axis(mel[0, :, 0, :length], alignment.shape[2]))
    return np.stack(rows)


def run_vocoder(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged`` of the vocoder."""
    return HifiganVocoder(package.functions(stage))(inputs["mel"])


def run_waveglow(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged`` of waveglow."""
    group = len(package.table("convinv.0.conv.weight"))     # the flow nearest to the sound has all channels
    return WaveglowVocoder(package.functions(stage), group)(inputs["mel"], inputs["noise"])


def _lengths(mask: np.ndarray) -> list[int]:
    """How many positions of each row a mask (B, T) of ones, then zeros, holds."""
    return [int(length) for length in mask.sum(axis=1)]


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
