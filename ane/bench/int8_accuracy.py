"""Accuracy of int8 on torch against float32, and the threshold below which it is not chosen."""

import numpy as np

from ane.backends.torch.backend import TorchBackend
from ane.bench.workload import TOKENS
from ane.bundles import Model
from ane.models.tortoise.embeddings import Embeddings
from ane.system.decibels import snr_db
from ane.system.errors import UserError

# dB of latents and logits. The embedded decoder reaches 31, random weights of official size 30 to 31 (all but 2 dB of
# the loss come from the weights alone); a layer that int8 does not suit costs far more. A call of the embedded denoiser
# reaches 57, of random weights of official size 32.
THRESHOLD_DB = 25.0
STEPS = 16      # codes that are decoded one by one and compared
TIMESTEP = 2000
FRAMES = 100    # of the mel that is denoised


def check_int8(model: Model) -> None:
    """Raise UserError when the decoder or the denoiser of ``model`` loses too much in int8.

    A network is loaded in each precision, one at a time.
    """
    for outputs in (decoded, *([denoised] if "diffusion" in model.networks else [])):
        pairs = zip(outputs(model, "fp32"), outputs(model, "int8"), strict=True)
        reached = min(snr_db(exact, rounded) for exact, rounded in pairs)
        if not reached >= THRESHOLD_DB:
            raise UserError(f"int8 reaches {reached:.1f} dB against float32, below the threshold of "
                            f"{THRESHOLD_DB:g} dB")


def decoded(model: Model, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """Latents (1 + STEPS, D) and logits (1 + STEPS, codes) of the same random text and codes at each call."""
    backend, config = TorchBackend(model, "cpu", precision, keep=False), model.config("autoregressive")
    rng, tables = np.random.default_rng(0), Embeddings(**backend.embeddings())
    voice = rng.standard_normal((1, config.model_dim), dtype=np.float32)
    prefix = tables.prefix(voice, rng.integers(1, config.number_text_tokens, TOKENS).tolist(), config)
    codes = rng.integers(0, config.start_mel_token, STEPS)
    decoder = backend.decoder(1, STEPS)
    latents, logits = ([first] for first in decoder.prefill(prefix))
    for position, column in enumerate(tables.codes(codes, np.arange(1, STEPS + 1))):
        latent, scores = decoder.step(column[None, None], np.array([position]))
        latents.append(latent[0, 0])
        logits.append(scores[0])
    return np.stack(latents), np.stack(logits)


def denoised(model: Model, precision: str) -> np.ndarray:
    """A prediction (1, 200, FRAMES) from the same random noise and latents.

    Without guidance: with random weights, norms amplify rounding in the row without conditioning.
    """
    backend, config = TorchBackend(model, "cpu", precision, keep=False), model.config("diffusion")
    rng = np.random.default_rng(0)
    latents = rng.standard_normal((1, FRAMES // 4, config.in_latent_channels), dtype=np.float32)
    voice = 0.6 * rng.standard_normal((1, 2 * config.model_channels), dtype=np.float32)
    noisy = rng.standard_normal((1, 100, FRAMES), dtype=np.float32)
    return backend.denoiser([latents], voice, [FRAMES])([noisy], TIMESTEP, False)[0]
