"""Training of the fast voice's vocoder."""

import numpy as np
import pytest
import torch

from ane.models.vocoders.hifigan import MelHifigan, MelHifiganConfig
from tests.training.timed_teacher import ToneTeacher
from training.mel_vocoder import PERIODS, AdversarialVocoder, Discriminator, train_adversarially, train_mel_vocoder
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


def test_the_discriminator_learns_from_its_own_loss_alone():
    torch.manual_seed(0)
    module = AdversarialVocoder(MelHifigan(TINY))
    output = torch.randn(2, 1024, requires_grad=True)
    losses = module.losses(output, torch.randn(2, 1024))
    (losses["adversarial"] + losses["features"]).backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in module.discriminator.parameters())
    assert output.grad.abs().sum() > 0
    output.grad = None
    losses["discriminator"].backward()
    assert output.grad is None
    assert all(parameter.grad is not None for parameter in module.discriminator.parameters())


@pytest.mark.parametrize("samples", [1024, 1023])
def test_the_discriminator_takes_any_length(samples):
    judged = Discriminator()(torch.randn(3, samples))
    assert len(judged) == len(PERIODS)
    assert all(one[-1].shape[0] == 3 for one in judged)


def test_a_vocoder_is_trained_by_spectra_and_then_adversarially_on_predicted_mels(tmp_path, shard):
    for steps in ((1,), (1, 20)):
        network = train_mel_vocoder(tmp_path / "vocoder", TINY, [shard], PartSchedule(steps, 2e-3, warmup=1), 2, "cpu")
    first, last = torch.load(tmp_path / "vocoder" / "checkpoint.pt", weights_only=True)["curve"]
    assert (first["step"], last["step"]) == (1, 20)
    assert last["loss"] < 0.9 * first["loss"]
    asked = []

    def predict(clip):
        asked.append(clip)
        return clip.mel.astype(np.float32)

    start = network.conv_post.weight.detach().clone()
    final = train_adversarially(tmp_path / "adversarial", network, [shard], PartSchedule((3,), 1e-3, warmup=1), 2,
                                predict, 2, "cpu")
    assert 1 <= len(asked) <= 2, "only in the third step, and once for each clip"
    assert not torch.equal(final.conv_post.weight, start)
    again = train_adversarially(tmp_path / "adversarial", MelHifigan(TINY), [shard],
                                PartSchedule((3,), 1e-3, warmup=1), 2, predict, 2, "cpu")
    assert torch.equal(again.conv_post.weight, final.conv_post.weight), "read from the checkpoint"
