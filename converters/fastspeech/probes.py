"""Test inputs for FastSpeech's packages: one probe for each kind of function (see ``converters.tortoise.probes``)."""

from collections.abc import Mapping

import numpy as np

from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.fastspeech.regulator import alignment_matrix
from ane.models.vocoders.waveglow import HOP, SIGMA
from converters.models import Probe

MISSING = 5             # by how much an input is shorter than its bucket


def text(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """States and log durations of symbols that nearly fill the bucket."""
    length = probed_length(model, bucket["symbols"])
    ids = rng.integers(1, model.config("fastspeech").embeddings, (1, length))
    encoded = backend.run("text", ids=ids, mask=np.ones((1, length), np.float32))
    return [encoded[..., :-1], encoded[..., -1:]]


def mel(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """The mel of states that are repeated unevenly, in frames that nearly fill the bucket."""
    frames, symbols = probed_length(model, bucket["frames"]), max(bucket["symbols"] - MISSING, 1)
    counts = rng.multinomial(frames, np.full(symbols, 1 / symbols))[None]
    states = rng.standard_normal((1, symbols, model.config("fastspeech").d_model), dtype=np.float32)
    return [backend.run("mel", states=states, alignment=alignment_matrix(counts, frames),
                        mask=np.ones((1, frames), np.float32))]


def probed_length(model: Model, bucket: int) -> int:
    """A little less than the bucket; all of it where padding changes the result, as with NVIDIA's class."""
    config = model.config("fastspeech")
    return min(bucket if config.padding == "published" else max(bucket - MISSING, 1), config.max_seq_len)


def vocoder(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """The sound of a mel that nearly fills the bucket."""
    bands = model.config("vocoder").num_mels
    return [backend.run("vocoder", mel=rng.standard_normal((1, bands, bucket["frames"] - 1), dtype=np.float32))]


def waveglow(backend: Backend, model: Model, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """The sound of a mel and noise."""
    length = bucket["frames"] - 1
    mel = rng.standard_normal((1, model.config("waveglow").n_mel_channels, length), dtype=np.float32)
    noise = np.float32(SIGMA) * rng.standard_normal((1, HOP, length), dtype=np.float32)
    return [backend.run("waveglow", mel=mel, noise=noise)]


PROBES: dict[str, Probe] = {"text": text, "mel": mel, "vocoder": vocoder, "waveglow": waveglow}

# kind → kinds of other functions that its probe calls
COMPANIONS: dict[str, tuple[str, ...]] = {}
