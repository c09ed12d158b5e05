"""Columns of the decoder from its look-up tables."""

import numpy as np

from ane.models.tortoise.decoding import Embeddings
from tests.random_model import CONFIGS

CONFIG = CONFIGS["autoregressive"]
WIDTH = 4
TABLES = Embeddings(*(np.random.default_rng(seed).standard_normal((600, WIDTH), dtype=np.float32)
                      for seed in range(4)))


def test_a_prefix_is_the_conditioning_then_the_text_then_the_start_code():
    conditioning = np.full((1, WIDTH), 5, np.float32)
    prefix = TABLES.prefix(conditioning, [9, 3], CONFIG)
    assert prefix.shape == (Embeddings.prefix_length([9, 3]), WIDTH)
    np.testing.assert_array_equal(prefix[:1], conditioning)
    ids = [CONFIG.start_text_token, 9, 3, CONFIG.stop_text_token]
    np.testing.assert_array_equal(prefix[1:-1], TABLES.text[ids] + TABLES.text_position[:4])
    np.testing.assert_array_equal(prefix[-1], TABLES.code[CONFIG.start_mel_token] + TABLES.code_position[0])


def test_codes_become_columns_at_their_positions():
    columns = TABLES.codes(np.array([2, 2]), np.array([1, 2]))
    np.testing.assert_array_equal(columns, TABLES.code[[2, 2]] + TABLES.code_position[[1, 2]])
