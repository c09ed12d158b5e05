"""CLVP in training."""

import dataclasses
import json

import numpy as np
import torch

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import pad_codes
from ane.models.tortoise.ranking import score_candidates
from ane.text import Tokenizer
from training.publish import TrainedModel
from training.ranking import CLVPInTraining, train_clvp
from training.recipe import CONFIGS, SETTINGS, tokenizer_json
from training.speech import Clip
from training.trainer import PartSchedule, TrainedPart


def test_clvp_in_training_gives_the_scores_of_the_pipeline():
    torch.manual_seed(0)
    config, text = CONFIGS["autoregressive"], Tokenizer(tokenizer_json()).encode_normalised("we were here.")
    model = CLVPInTraining(CONFIGS["clvp"], config).eval()
    backend = TorchBackend(TrainedModel({"clvp": model.network}, np.ones(80, np.float32), "rms"), "cpu")
    codes, buffer = [np.arange(12), np.arange(40, 90)], SETTINGS["sampling"]["max_codes"]
    expected = score_candidates(backend, text_tokens(text, config),
                                np.stack([pad_codes(each, buffer, config) for each in codes]))
    assert model.max_codes == buffer
    found = (model.text([text]) @ model.speech(codes, buffer).T)[0]
    np.testing.assert_allclose(found.detach(), expected, atol=1e-4)


def test_clvp_learns_which_codes_belong_to_a_text(tmp_path):
    rng = np.random.default_rng(0)
    clips = [Clip(text.tolist(), np.repeat(20 * text, 2), 0, None, index)
             for index, text in enumerate(rng.integers(3, 29, (60, 6)))]
    train_clvp(TrainedPart(tmp_path, PartSchedule(steps=(60,), rate=3e-3, warmup=5, batch=8), "cpu", tmp_path / "none"),
               CONFIGS["clvp"], dataclasses.replace(CONFIGS["autoregressive"], max_mel_tokens=20), clips, clips)
    last = json.loads((tmp_path / "curve.json").read_text())[-1]
    assert last["accuracy, validation"] > 0.5
