"""The decoder's embedding tables, looked up in NumPy: text tokens and codes become columns (n, D)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig


@dataclass(frozen=True)
class Embeddings:
    """All tables are float32."""

    text: np.ndarray                # (tokens, D)
    text_position: np.ndarray       # (positions, D)
    code: np.ndarray                # (V, D)
    code_position: np.ndarray       # (positions, D)

    def prefix(self, conditioning: np.ndarray, tokens: Sequence[int], config: UnifiedVoiceConfig) -> np.ndarray:
        """The columns [conditioning][start, tokens, stop][start of codes]: (1, D), ids → (len(tokens) + 4, D)."""
        ids = [config.start_text_token, *tokens, config.stop_text_token]
        text = self.text[ids] + self.text_position[:len(ids)]
        return np.concatenate((conditioning, text, self.codes(config.start_mel_token, 0)[None]))

    @staticmethod
    def prefix_length(tokens: Sequence[int]) -> int:
        """Number of columns that ``prefix`` returns for these tokens."""
        return len(tokens) + 4

    def codes(self, codes: np.ndarray | int, position: np.ndarray | int) -> np.ndarray:
        """Columns (…, D) of codes at mel positions; code i of a sequence is at i + 1, after the start code."""
        return self.code[codes] + self.code_position[position]
