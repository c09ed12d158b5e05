"""How near the torch decoder in int8 comes to itself in float32, and how near it must for `ane bench` to choose it."""

import numpy as np

from ane.backends.torch.backend import TorchBackend
from ane.bench.figures import TOKENS
from ane.bundles import Model
from ane.models.tortoise.embeddings import Embeddings
from ane.system.errors import UserError

# dB, of latents and of logits. The embedded decoder reaches 31, random weights of official size 30 to 31 (of which int8
# weights alone, their activations exact, cost all but 2); a layer that int8 does not suit costs far more.
BAR = 25.0
STEPS = 16      # codes that are decoded to compare, one by one


def hold_to_bar(model: Model) -> None:
    """Raise UserError when the decoder of ``model`` loses too much in int8; two networks are loaded, one at a time."""
    reached = nearness(model)
    if not reached >= BAR:
        raise UserError(f"int8 reaches {reached:.1f} dB against float32, and {BAR:g} are asked for")


def nearness(model: Model, precision: str = "int8") -> float:
    """Signal-to-noise ratio in dB of what the decoder gives, the lower of latents' and logits'."""
    exact, near = (decoded(model, each) for each in ("fp32", precision))
    return min(float(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))
               for a, b in zip(exact, near, strict=True))


def decoded(model: Model, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """Latents and logits after random text and of random codes, the same at each call."""
    backend, config = TorchBackend(model, "cpu", precision, keep=False), model.config("autoregressive")
    rng, tables = np.random.default_rng(0), Embeddings(**backend.embeddings())
    voice = rng.standard_normal((1, config.model_dim), dtype=np.float32)
    prefix = tables.prefix(voice, rng.integers(1, config.number_text_tokens, TOKENS).tolist(), config)
    codes = rng.integers(0, config.start_mel_token, STEPS)
    decoder = backend.decoder(1, STEPS)
    latents, logits = ([first] for first in decoder.prefill(prefix))
    for at, column in enumerate(tables.codes(codes, np.arange(1, STEPS + 1))):
        latent, scores = decoder.step(column[None, None], np.array([at]))
        latents.append(latent[0, 0])
        logits.append(scores[0])
    return np.stack(latents), np.stack(logits)
