"""Training of the fast voice's vocoder."""

import numpy as np
import pytest
import torch

from ane.models.vocoders.hifigan import MelHifiganConfig
from tests.training.timed_teacher import ToneTeacher
from training.mel_vocoder import train_mel_vocoder
from training.timed_speech import speak_timed_shard
from training.trainer import PartSchedule

TINY = MelHifiganConfig(resblock="2", upsample_rates=(4, 4, 4, 4), upsample_kernel_sizes=(8, 8, 8, 8),
                        upsample_initial_channel=32, resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 2),))


@pytest.fixture
def shard(tmp_path, monkeypatch):
    monkeypatch.setattr("training.timed_speech.flite_voice", ToneTeacher)
    path = tmp_path / "0000-rms.npz"
    speak_timed_shard(path, ["one two three four five", "that house is made of stone"] * 3, "rms", None, 0)
    return path


def test_a_vocoder_learns_from_spectra_and_at_last_from_predicted_mels(tmp_path, shard):
    asked = []

    def predict(clip):
        asked.append(clip)
        return clip.mel.astype(np.float32)

    def train(*steps):
        return train_mel_vocoder(tmp_path / "vocoder", TINY, [shard], PartSchedule(steps, 2e-3, warmup=1), 19, predict,
                                 2, "cpu")

    train(1)
    network = train(1, 20)
    first, last = torch.load(tmp_path / "vocoder" / "checkpoint.pt", weights_only=True)["curve"]
    assert (first["step"], last["step"]) == (1, 20)
    assert last["loss"] < 0.9 * first["loss"]
    assert 1 <= len(asked) <= 2, "only in the last step, and once for each clip"
    assert torch.equal(train(1, 20).conv_post.weight, network.conv_post.weight), "read from the checkpoint"
