"""What upstream does to sampled codes before ranking and diffusion (api.py, fix_autoregressive_output and tts)."""

from collections.abc import Sequence

import numpy as np

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig


def fixed(codes: Sequence[int], buffer: int, config: UnifiedVoiceConfig) -> np.ndarray:
    """Sampled codes in upstream's buffer: what follows the stop code is silence, the very end a fixed tail.

    Args:
        codes: sampled codes up to and without the stop code, at most ``buffer``.
        buffer: length of upstream's array, its max_mel_tokens.

    Returns:
        (buffer,) int64; without a stop code (``len(codes) == buffer``) the codes as they are.
    """
    out = np.full(buffer, config.calm_token, dtype=np.int64)
    out[:len(codes)] = codes
    if len(codes) < buffer:
        tail = np.asarray(config.tail_tokens)[-buffer:]
        out[buffer - len(tail):] = tail
    return out


def trimmed_length(codes: np.ndarray, config: UnifiedVoiceConfig) -> int:
    """Latents that go on to diffusion: all, or as many as stand before the silent code that is one too many in a row.

    Upstream keeps eight in a row (api.py, calm_tokens), whatever the model; here the config says.
    """
    run = 0
    for index, code in enumerate(codes):
        run = run + 1 if code == config.calm_token else 0
        if run > config.calm_run:
            return index
    return len(codes)
