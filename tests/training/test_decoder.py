"""The decoder in training beside the decoder in the pipeline."""

import numpy as np
import torch

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import Prompt, decode
from ane.models.tortoise.sampling import InverseCdfSampler, Sampling
from ane.text import Tokenizer
from training.decoder import FRAMES, DecoderInTraining, DecoderObjective, training_sequence
from training.pitch import MIDDLE
from training.publish import TrainedModel
from training.recipe import CONFIGS, tokenizer_json
from training.speech import Clip


def test_latents_in_training_equal_those_of_the_pipeline():
    """Those of the silence after the end included."""
    torch.manual_seed(1)
    config = CONFIGS["autoregressive"]
    model = DecoderInTraining(config, voices=2, characters_per_code=0.7).eval()
    with torch.no_grad():
        model.network.mel_head.bias[config.stop_mel_token] = 2.0       # so that candidates end
    trained = TrainedModel({"autoregressive": model.network}, np.ones(80, np.float32), "rms")
    text = Tokenizer(tokenizer_json()).encode("hello there")
    sampling, choices = Sampling(repetition_penalty=1.0, max_codes=60), [InverseCdfSampler(np.random.default_rng(5))]
    chunk = Prompt(model.voices[1:].detach().numpy(), text_tokens(text, config), choices)
    [[candidate]] = decode(TorchBackend(trained, "cpu"), [chunk], config, sampling)
    assert candidate.stopped
    rows, positions, targets, first = training_sequence(
        Clip(text, np.array(candidate.codes), voice=1, shard=None, index=0), config)
    hidden = model(torch.from_numpy(rows)[None], torch.from_numpy(positions)[None])[0, first:].detach().numpy()
    np.testing.assert_allclose(hidden[:len(candidate.latents)], candidate.latents, atol=2e-4)
    assert len(candidate.latents) == len(candidate.codes) + config.calm_run
    assert (targets[first:first + len(candidate.codes)] - config.number_text_tokens - 1 == candidate.codes).all()


def test_pitch_losses_count_voiced_frames_alone():
    pitch = torch.tensor([MIDDLE, 2 * MIDDLE, 0.0, MIDDLE])
    right = torch.tensor([[0.0, 1.0, 55.0, 0.0, 20.0, 20.0, -20.0, 20.0]])      # octaves of FRAMES, then voicing
    assert right.shape[1] == 2 * FRAMES
    octaves, voicing = DecoderObjective.pitch_losses(right, pitch)
    assert float(octaves) == 0
    assert float(voicing) < 1e-6
    octaves, _ = DecoderObjective.pitch_losses(right + 1, pitch)
    assert float(octaves) == 1
