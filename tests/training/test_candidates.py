"""Candidates for training CLVP."""

import numpy as np
import torch

from training.candidates import CANDIDATES, sample_job, score_candidates
from training.clips import Clip
from training.decoder import DecoderInTraining
from training.listener import Listener
from training.recipe import CALM_TOKEN, CONFIGS, SETTINGS
from training.trainer import state_bytes


def test_candidates_of_a_text_differ_are_seeded_by_its_number_and_are_scored(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setitem(SETTINGS["sampling"], "max_codes", 20)
    config, listener = CONFIGS["autoregressive"], Listener(2)
    voices = np.random.default_rng(0).standard_normal((2, config.model_dim), dtype=np.float32)
    clips = [Clip([3, 4, 5, 6], np.array([*range(12), *[CALM_TOKEN] * silence]), voice, None, 0)
             for voice, silence in ((0, 0), (1, 0), (1, 3))]
    state = state_bytes(DecoderInTraining(config, 2, 0.7).network)
    candidates = [[torch.from_numpy(codes) for codes in row] for row in sample_job(state, voices, clips, 5)]
    [[first, *_], *_] = candidates
    assert len({tuple(codes.tolist()) for row in candidates for codes in row}) == 3 * CANDIDATES
    [[alone, *_]] = sample_job(state, voices, clips[1:2], 6)    # seeded by the text's number
    np.testing.assert_array_equal(alone, candidates[1][0])
    [[other, *_]] = sample_job(state, voices[::-1].copy(), clips[:1], 5)
    assert other.tolist() != first.tolist()

    too_short = Clip([3, 4, 5, 6], np.arange(1), 0, None, 1)
    scored = list(score_candidates(listener, [*clips, too_short], [*candidates, candidates[0]]))
    assert [one.clip for one in scored] == clips
    assert all(len(one.codes) == len(one.nats) == 1 + CANDIDATES for one in scored)
    [expected] = listener.nats_per_letter([clips[1].text], [clips[1].codes], [1])
    for one in scored[1:]:           # the silence after the end does not count
        torch.testing.assert_close(one.nats[0], expected)
