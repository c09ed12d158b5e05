"""Accuracy of the torch decoder in int8 against float32, and the threshold below which it is not chosen."""

import numpy as np

from ane.backends.torch.backend import TorchBackend
from ane.bench.workload import TOKENS
from ane.bundles import Model
from ane.models.tortoise.embeddings import Embeddings
from ane.system.decibels import snr_db
from ane.system.errors import UserError

# dB of latents and logits. The embedded decoder reaches 31, random weights of official size 30 to 31 (all but 2 dB of
# the loss come from the weights alone); a layer that int8 does not suit costs far more.
THRESHOLD_DB = 25.0
STEPS = 16      # codes that are decoded one by one and compared


def check_int8(model: Model) -> None:
    """Raise UserError when the decoder of ``model`` loses too much in int8; two networks are loaded, one at a time."""
    outputs = zip(decoded(model, "fp32"), decoded(model, "int8"), strict=True)
    reached = min(snr_db(exact, rounded) for exact, rounded in outputs)
    if not reached >= THRESHOLD_DB:
        raise UserError(f"int8 reaches {reached:.1f} dB against float32, below the threshold of {THRESHOLD_DB:g} dB")


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
