"""Declare FastSpeech to bundles, backends and commands, with its stages (named network calls).

Dimension names: B batch, T symbols, C width of the model, L mel frames, M mel bands.
"""

from pathlib import Path

import numpy as np

from ane.backends.base import FunctionSet, ModelStages, Stage, TensorSpec
from ane.backends.fixed_shapes import Rows, pad_last_axis, row_lengths, sequence_masks, smallest_fitting
from ane.bundles.family import ModelFamily
from ane.models.fastspeech.checkpoints import import_fastspeech, is_fastspeech, source_files
from ane.models.fastspeech.networks import NETWORKS
from ane.models.fastspeech.settings import FastSpeechSettings
from ane.models.vocoders.segments import hifigan_sounds


def run_mel(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Compute the mel on a package. Backends call this as ``Stage.packaged``.

    Raises:
        UserError: A row is longer than the package's longest function.
    """
    functions, states, alignment = package.functions(stage), inputs["states"], inputs["alignment"]
    rows: list[np.ndarray] = []
    for row, length in enumerate(row_lengths(inputs["mask"])):
        function = smallest_fitting(functions, "the speech", frames=length, symbols=states.shape[1])
        frames, symbols = function.bucket["frames"], function.bucket["symbols"]
        matrix = np.zeros((1, 1, symbols, frames), np.float32)
        matrix[0, 0, : states.shape[1], :length] = alignment[row, :, :length]
        mel = function(
            states=pad_last_axis(states[row].T[None, :, None], symbols),
            alignment=matrix,
            inside=sequence_masks(length, frames)["inside"],
        )["mel"]
        rows.append(pad_last_axis(mel[0, :, 0, :length], alignment.shape[2]))
    return np.stack(rows)


# A mask is 1 at the symbols or frames of a row, and 0 at the padding after them, where the output may be anything.
STAGES = {
    # The last channel of the output has the log durations. The other channels have the encoder's states.
    "text": Stage(
        "fastspeech",
        {"ids": TensorSpec(("B", "T"), "int64"), "mask": TensorSpec(("B", "T"))},
        TensorSpec(("B", "T", "C+1")),
        "text",
        Rows("symbols", ("states", "log_durations"), ("word_emb.weight",)),
    ),
    # The alignment is a matrix that repeats the states (ane.models.durations).
    "mel": Stage(
        "fastspeech",
        {
            "states": TensorSpec(("B", "T", "C")),
            "alignment": TensorSpec(("B", "T", "L")),
            "mask": TensorSpec(("B", "L")),
        },
        TensorSpec(("B", "M", "L")),
        "mel",
        run_mel,
    ),
    "vocoder": Stage(
        "vocoder",
        {"mel": TensorSpec(("B", "M", "L"))},
        TensorSpec(("B", 1, "256L")),
        packaged=lambda package, stage, inputs: hifigan_sounds(package.functions(stage), inputs["mel"]),
        divides=True,
    ),
}


class FastSpeechFamily(ModelFamily):
    name, title = "fastspeech", "FastSpeech"
    networks, stages, settings = NETWORKS, ModelStages(STAGES), FastSpeechSettings
    import_checkpoints, source_files = staticmethod(import_fastspeech), staticmethod(source_files)  # type: ignore[assignment]

    def recognises(self, path: Path) -> bool:
        return path.suffix not in (".onnx", ".safetensors") and is_fastspeech(path)


FAMILY = FastSpeechFamily()
