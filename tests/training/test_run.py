"""What a training run reuses."""

from pathlib import Path

import numpy as np
import torch

from training.decoder import DecoderInTraining
from training.recipe import CONFIGS, load_recipe
from training.run import TrainingRun
from training.speech import Clip


def test_cached_latents_are_recomputed_for_another_decoder(tmp_path, monkeypatch):
    clip = Clip([3, 4, 5], np.arange(6), 0, Path("shard"), 0)
    monkeypatch.setattr(TrainingRun, "held_back_shards", [])
    monkeypatch.setattr(TrainingRun, "clips", lambda self, shards: [clip])
    (tmp_path / "autoregressive").mkdir()

    def latents(seed):
        torch.manual_seed(seed)
        run = TrainingRun(tmp_path, load_recipe(), "cpu", tmp_path, 1)
        run.autoregressive = DecoderInTraining(CONFIGS["autoregressive"], 1, 0.7).eval()
        torch.save(run.autoregressive.state_dict(), tmp_path / "autoregressive" / "checkpoint.pt")
        return run.latents[clip.shard, clip.index], run

    first, _ = latents(0)
    second, run = latents(1)       # trained again in the same folder, to the same step
    [expected] = run.compute_latents(run.autoregressive, [clip])
    np.testing.assert_array_equal(second, expected.numpy())
    assert not np.array_equal(first, second)
    run.compute_latents = None          # computed once
    del run.latents
    np.testing.assert_array_equal(run.latents[clip.shard, clip.index], second)
