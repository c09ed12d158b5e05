"""Tortoise's vocoders on fixed-shape functions; ``ane.models.vocoders.segments`` splits the sound into windows."""

import numpy as np

from ane.backends.base import FunctionSet
from ane.models.tortoise.networks.univnet import SILENCE, SILENT_FRAMES
from ane.models.vocoders.segments import HifiganVocoder, PackagedVocoder, zero_padded

MIRRORED = 3        # frames of noise that UnivNet's first convolution mirrors at either end


class UnivnetVocoder(PackagedVocoder):
    def __call__(self, mel: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """mel (B, 100, L), noise (B, Z, L + 10) → (B, 1, 256·L), all float32."""
        return np.stack([self._row(*row)[None] for row in zip(mel, noise, strict=True)])

    def _row(self, mel: np.ndarray, noise: np.ndarray) -> np.ndarray:
        stop = mel.shape[1]
        mel = np.pad(mel, ((0, 0), (0, SILENT_FRAMES)), constant_values=SILENCE)
        length = mel.shape[1]
        noise = np.pad(noise[:, :length], ((0, 0), (MIRRORED, MIRRORED)), mode="reflect")
        return self._sound(stop, length, lambda begin, width: {
            "mel": zero_padded(mel, begin, width), "noise": zero_padded(noise, begin + MIRRORED, width)})


def run_vocoder(package: FunctionSet, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    vocoder = {"univnet": UnivnetVocoder, "hifigan": HifiganVocoder}[stage]
    return vocoder(package.functions(stage))(**inputs)
