"""Test inputs for FastSpeech's ONNX graphs: the probes of its packages, at other lengths than were traced."""

from collections.abc import Mapping

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.vocoders.waveglow import HOP, SIGMA
from converters.fastspeech import probes

# kind → the lengths it is probed with; the inputs are a little shorter
LENGTHS = {"text": {"symbols": 40}, "mel": {"frames": 90, "symbols": 30}, "vocoder": {"frames": 30},
           "waveglow": {"frames": 30}}


def waveglow(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """The sound of a mel and noise."""
    length = bucket["frames"] - 1
    mel = rng.standard_normal((1, model.config("waveglow").n_mel_channels, length), dtype=np.float32)
    noise = np.float32(SIGMA) * rng.standard_normal((1, HOP, length), dtype=np.float32)
    return [backend.run("waveglow", mel=mel, noise=noise)]


PROBES = {**probes.PROBES, "waveglow": waveglow}
