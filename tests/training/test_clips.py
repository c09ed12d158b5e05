"""Batches of training clips."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from training.clips import Batches


@settings(max_examples=30)
@given(st.lists(st.integers(10, 200), min_size=1, max_size=300), st.integers(0, 5))
def test_an_epoch_contains_every_clip_once(lengths, epoch):
    batches = Batches(lengths, 600, seed=1)
    seen = np.concatenate(batches.epoch(epoch))
    assert sorted(seen) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) < 600 + 200 + max(lengths) for batch in batches.epoch(epoch))
