"""Scores of candidates, by CLVP alone and mixed with CVVP, are upstream's."""

import re

import numpy as np
import pytest

from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.models.tortoise.ranking import best_candidates, score_candidates


@pytest.fixture(scope="module")
def backend(golden_checkpoints, golden_config) -> TorchBackend:
    return TorchBackend(open_model(checkpoints=golden_checkpoints, config=golden_config), "cpu", "fp32")


@pytest.fixture
def clip_mels(golden_stage) -> np.ndarray:
    audio = golden_stage("audio")
    return np.concatenate([audio["ar_mel_clip1"], audio["ar_mel_clip2"]])


@pytest.mark.parametrize("length", ["", "_500"])
def test_clvp_scores(backend, golden_stage, assert_parity, length):
    stage = golden_stage("clvp")
    scores = score_candidates(backend, stage["text_ids"][0], stage[f"codes{length}"])
    assert_parity(scores, "clvp", f"scores{length}")
    assert best_candidates(scores, len(scores)) == list(np.argsort(-stage[f"scores{length}"], kind="stable"))


def test_cvvp_scores_are_the_mean_over_the_clips(backend, golden_stage, clip_mels, tolerance, assert_close):
    stage = golden_stage("cvvp")
    scores = score_candidates(backend, golden_stage("clvp")["text_ids"][0], stage["codes"], 1.0, clip_mels)
    expected = (stage["scores_clip1"] + stage["scores_clip2"]) / 2
    allowed = max(tolerance("cvvp", "scores_clip1"), tolerance("cvvp", "scores_clip2"))
    assert_close(scores, expected, allowed, "cvvp")


def test_clvp_and_cvvp_are_mixed_as_in_upstream(backend, golden_stage, clip_mels, tolerance, assert_close):
    stage = golden_stage("cvvp")
    allowed = tolerance("cvvp", "scores_clip1") + tolerance("clvp", "scores")
    for name in (name for name in stage if name.startswith("total_")):
        amount = float(re.fullmatch(r"total_([\d.]+)", name).group(1))
        scores = score_candidates(backend, golden_stage("clvp")["text_ids"][0], stage["codes"], amount, clip_mels)
        assert_close(scores, stage[name], allowed, name)


def test_the_candidates_of_a_complete_run_have_upstreams_order(backend, golden_stage, assert_parity):
    stage = golden_stage("end_to_end")
    scores = score_candidates(backend, stage["text_ids"][0], stage["codes_fixed"])
    assert_parity(scores, "end_to_end", "clvp_scores")
    assert best_candidates(scores, len(stage["order"])) == list(stage["order"])
