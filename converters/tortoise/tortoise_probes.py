"""Call the functions of Tortoise's packages with test inputs. Each kind of function has one probe here.

``converters.function_table.Probe`` explains the arguments and the result of a probe. The argument ``bucket`` has the
fixed lengths of the function. The test inputs are a little shorter.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ane.backends.base import Backend
from ane.backends.packaged.backend import PackagedEngine
from ane.bundles import Bundle
from ane.models.tortoise.decoding import Embeddings
from ane.models.tortoise.vocoding import hifigan_sound
from converters.function_table import Probe


def prefill(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Decode four prefixes that are nearly as long as the function allows, and one step after the third.

    Return all outputs.
    """
    decoder = backend.decoder(1, 1)
    outputs: list[np.ndarray] = []
    codes = Embeddings(**backend.embeddings()).code
    for missing in (5, 3, 2, 9):
        outputs += decoder.prefill(prefix(backend, model, bucket["columns"] - missing, rng))
        if missing == 2:  # not after the last prefix: `ane verify --layers` must look into a prefill, the last call
            outputs += decoder.step(codes[None, rng.integers(0, len(codes), 1)], np.zeros(1, dtype=np.int64))
    return outputs


def step(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Run three steps on all lanes (sequences), then decode several positions in one call on one lane.

    In the third step, one lane starts again.
    """
    start, tail = prefix(backend, model, 12, rng), 3
    lanes = min(bucket["columns"], (bucket["slots"] - len(start)) // 4)
    decoder = backend.decoder(lanes, min(8, (bucket["slots"] - len(start)) // lanes))
    outputs = [*decoder.prefill(start)]
    codes = Embeddings(**backend.embeddings()).code
    length = np.zeros(lanes, dtype=np.int64)
    for index in range(3):
        length[-1] *= index != 2
        outputs += decoder.step(codes[rng.integers(0, len(codes), (lanes, 1))], length)
        length += 1
    outputs += decoder.step(codes[rng.integers(0, len(codes), (1, tail))], length[-1:], lanes - 1)
    return outputs


def store(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Decode a long prefix, and run a step that reads it from the kv-cache. The function ``store`` fills the cache.

    If the model allows texts that are long enough, ``store`` copies more than one block.
    """
    blocks = min(2, bucket["capacity"] // bucket["columns"] - 1)
    decoder = backend.decoder(1, 2)
    outputs = [*decoder.prefill(prefix(backend, model, blocks * bucket["columns"] - 5, rng))]
    codes = Embeddings(**backend.embeddings()).code
    return [*outputs, *decoder.step(codes[None, rng.integers(0, len(codes), 1)], np.zeros(1, dtype=np.int64))]


def prefix(backend: Backend, model: Bundle, length: int, rng: np.random.Generator) -> np.ndarray:
    """Make a prefix of a random voice and random text, (length, D). The decoder's positions limit ``length``."""
    config = model.config("autoregressive")
    length = min(length, config.text_positions + 2)
    tokens = rng.integers(1, config.number_text_tokens, length - 4)
    conditioning = rng.standard_normal((1, config.model_dim), dtype=np.float32)
    return Embeddings(**backend.embeddings()).prefix(conditioning, tokens.tolist(), config)


def condition(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Run a denoising step that is conditioned on nearly as many latents as the function takes."""
    return _denoise_once(backend, model, bucket["latents"] - 3, 40, False, rng)  # every function takes 40 frames


def denoise(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Run a denoising step on nearly as many frames as the function takes.

    The step is guided if the function's batch is 2.
    """
    frames = bucket["frames"] - 7
    return _denoise_once(backend, model, max(frames // 5, 1), frames, bucket["batch"] == 2, rng)


def decoder_latents(backend: Backend, model: Bundle, count: int, rng: np.random.Generator) -> np.ndarray:
    """Compute the latents (count, D) of random codes, which are the inputs of diffusion and HiFi-GAN.

    The torch backend computes the latents, even if ``backend`` runs packages.
    """
    reference = backend.fallback if isinstance(backend, PackagedEngine) else backend
    decoder = reference.decoder(1, count)
    decoder.prefill(prefix(reference, model, 12, rng))
    codes = Embeddings(**reference.embeddings()).code
    return decoder.step(codes[rng.integers(0, len(codes), (1, count))], np.zeros(1, dtype=np.int64))[0][0]


def _denoise_once(
    backend: Backend, model: Bundle, latents: int, frames: int, guided: bool, rng: np.random.Generator
) -> list[np.ndarray]:
    denoiser = bind_denoiser(backend, model, latents, frames, rng)
    return denoiser([rng.standard_normal((1, 100, frames), dtype=np.float32)], 2000, guided)


def bind_denoiser(backend: Backend, model: Bundle, latents: int, frames: int, rng: np.random.Generator) -> Any:
    voice = 0.6 * rng.standard_normal((1, 2 * model.config("diffusion").model_channels), dtype=np.float32)
    return backend.denoiser([decoder_latents(backend, model, latents, rng)[None]], voice, [frames])


def hifigan(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Run HiFi-GAN on nearly as many latents as the function takes, and return the audio."""
    voice = rng.standard_normal((1, model.config("hifigan").cond_channels), dtype=np.float32)
    latents = decoder_latents(backend, model, max(bucket["frames"] // 5, 1), rng)
    return [hifigan_sound(backend, voice, latents)[None, None]]


def id_probe(stage: str, name: str, ids: str) -> Probe:
    """Create a probe, a test that runs a CLVP encoder on nearly as many random ids as the function takes.

    Args:
        stage: Name under which a backend runs the encoder.
        name: Name of the encoder's input.
        ids: Field of CLVP's config with the number of different ids.
    """

    def probe(backend: Backend, model: Bundle, bucket: Mapping[str, int], rng: np.random.Generator) -> list[np.ndarray]:
        count = getattr(model.config("clvp"), ids)
        return [backend.run(stage, **{name: rng.integers(0, count, (1, bucket["positions"] - 5))})]

    return probe


def step_prefixes(
    backend: Backend, model: Bundle, lengths: Mapping[str, int], rng: np.random.Generator
) -> list[np.ndarray]:
    """Run steps whose lanes (sequences) have different positions and different prefixes.

    One lane changes to another prefix.
    """
    lanes = lengths["lanes"]
    starts = [prefix(backend, model, length, rng) for length in (9, 14)]
    codes = Embeddings(**backend.embeddings()).code
    length, prefix_of = np.arange(lanes) % 3, np.arange(lanes) % 2
    before = codes[rng.integers(0, len(codes), (lanes, 2))]
    columns = codes[rng.integers(0, len(codes), (2, lanes, 1))]
    decoder = backend.decoder(lanes, 8, len(starts), max(map(len, starts)))
    for number, start in enumerate(starts):
        decoder.prefill(start, number)
    decoder.step(before, np.zeros(lanes, dtype=np.int64), 0, prefix_of)
    outputs = list(decoder.step(columns[0], length, 0, prefix_of))
    prefix_of[0], length[0] = 1, 0
    return outputs + list(decoder.step(columns[1], length, 0, prefix_of))
