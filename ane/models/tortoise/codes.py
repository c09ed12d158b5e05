"""What upstream does to sampled codes before ranking and diffusion (api.py, fix_autoregressive_output and tts)."""

from collections.abc import Sequence

import numpy as np

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig


def pad_codes(codes: Sequence[int], length: int, config: UnifiedVoiceConfig) -> np.ndarray:
    """Codes padded as in upstream: silent codes from the stop code on, and ``config.tail_tokens`` as the last ones.

    Args:
        codes: sampled codes before the stop code, at most ``length``.
        length: of upstream's array, its max_mel_tokens.

    Returns:
        (length,) int64; if there was no stop code (``len(codes) == length``), the codes unchanged.
    """
    out = np.full(length, config.calm_token, dtype=np.int64)
    out[:len(codes)] = codes
    if len(codes) < length:
        tail = np.asarray(config.tail_tokens)[-length:]
        out[length - len(tail):] = tail
    return out


def trimmed_length(codes: np.ndarray, config: UnifiedVoiceConfig) -> int:
    """Number of latents that diffusion gets: those before the first silent code that exceeds ``calm_run`` in a row.

    Upstream keeps eight in a row for every model (api.py, calm_tokens); here the config has the number.
    """
    run = 0
    for index, code in enumerate(codes):
        run = run + 1 if code == config.calm_token else 0
        if run > config.calm_run:
            return index
    return len(codes)


def longest_loop(codes: Sequence[int], config: UnifiedVoiceConfig, period: int = 4) -> int:
    """How many codes in a row repeat themselves after at most ``period`` codes, silent ones apart."""
    codes_array, longest = np.asarray(codes), 0
    for distance in range(1, period + 1):
        run = 0
        for same in (codes_array[distance:] == codes_array[:-distance]) & (codes_array[distance:] != config.calm_token):
            run = run + 1 if same else 0
            longest = max(longest, run)
    return longest
