"""The stages of FastSpeech on fixed-shape package functions. The rows of a batch are run one by one.

Each row gets the smallest bucket that it fits, so outputs beyond a row's mask are zeros.
"""

import numpy as np

from ane.backends.base import FunctionSet
from ane.backends.packaged.functions import pad_last_axis, sequence_masks, smallest_fitting
from ane.models.vocoders.segments import HifiganVocoder, WaveglowVocoder


def run_text(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """``Stage.packaged`` of text. Raises UserError when a row has more symbols than the largest bucket."""
    functions, table, ids = package.functions(stage), package.table("word_emb.weight"), inputs["ids"]
    encoded = np.zeros((*ids.shape, table.shape[1] + 1), np.float32)
    for row, length in enumerate(_lengths(inputs["mask"])):
        function = smallest_fitting(functions, "the text", symbols=length)
        symbols = function.bucket["symbols"]
        found = function(x=pad_last_axis(table[ids[row, :length]].T[None, :, None], symbols),
                         inside=sequence_masks(length, symbols)["inside"])
        encoded[row, :length] = np.concatenate([found["states"], found["log_durations"]], axis=1)[0, :, 0, :length].T
    return encoded


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
