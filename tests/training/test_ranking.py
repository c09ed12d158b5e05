"""The losses that CLVP is trained on."""

import dataclasses
import json

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.codes import pad_codes
from ane.models.tortoise.ranking import score_candidates
from ane.text import Tokenizer
from training.candidates import CANDIDATES, ScoredCandidates
from training.clips import Clip
from training.ranking import (
    ALTERED,
    CLVPInTraining,
    alter_text,
    ranking_gain,
    train_clvp,
    words_by_length,
    words_of,
)
from training.recipe import CONFIGS, SETTINGS, tokenizer_json
from training.trained_model import TrainedModel
from training.trainer import PartSchedule


@given(st.lists(st.sampled_from(["we", "were", "here", "a", "word", "apart"]), min_size=1, max_size=6),
       st.integers(0, 10**9))
def test_an_altered_text_has_equal_length_and_one_different_word(spoken, seed):
    ids = Tokenizer(tokenizer_json()).encode_normalised
    text = ids(" ".join(spoken) + ".")
    words = words_by_length([Clip(ids(known), np.zeros(1, np.int64), 0, None, 0) for known in
                             (" ".join(spoken), "in and that")])
    changed = alter_text(text, words, np.random.default_rng(seed))
    assert len(changed) == len(text)
    slices = words_of(text)
    assert words_of(changed) == slices
    assert sum(changed[word] != text[word] for word in slices) == 1


def test_a_word_of_a_length_without_others_is_altered_in_a_letter_and_text_without_words_not_at_all():
    ids, rng = Tokenizer(tokenizer_json()).encode_normalised, np.random.default_rng(0)
    assert alter_text(ids("'. -"), {}, rng) == ids("'. -")
    changed = alter_text(ids("electroencephalogram"), {2: [ids("we")]}, rng)
    assert np.count_nonzero(np.array(changed) != ids("electroencephalogram")) == 1


def test_clvp_in_training_gives_the_scores_of_the_pipeline():
    torch.manual_seed(0)
    config, ids = CONFIGS["autoregressive"], Tokenizer(tokenizer_json()).encode_normalised
    model = CLVPInTraining(CONFIGS["clvp"], config).eval()
    backend = TorchBackend(TrainedModel({"clvp": model.network}, np.ones(80, np.float32), "rms"), "cpu")
    spoken = [[np.arange(12), np.arange(40, 90)], [np.arange(7), np.arange(300, 310)]]
    rows = [ScoredCandidates(Clip(ids(text), codes[0], 0, None, 0), codes, torch.zeros(2))
            for text, codes in zip(("we were here.", "i wish i was."), spoken, strict=True)]
    buffer = SETTINGS["sampling"]["max_codes"]
    expected = [score_candidates(backend, text_tokens(one.clip.text, config),
                      np.stack([pad_codes(codes, buffer, config) for codes in one.codes])) for one in rows]
    assert model.max_codes == buffer
    np.testing.assert_allclose(model.scores(rows, buffer).detach(), expected, atol=1e-4)


def test_a_clip_is_compared_with_its_own_altered_texts():
    torch.manual_seed(0)
    model = CLVPInTraining(CONFIGS["clvp"], CONFIGS["autoregressive"])
    clips = [Clip(list(range(at, at + 5)), np.arange(10) + 20 * at, 0, None, at) for at in (3, 8, 13)]
    others = [[token + 10 + step for token in clip.text] for step in range(ALTERED) for clip in clips]
    scores = [[float((model.text([text]) * model.speech(model.encode_speech([clip.codes], 12))).sum().detach())
               for text in (clip.text, *others[index::len(clips)])] for index, clip in enumerate(clips)]
    expected = torch.nn.functional.cross_entropy(torch.tensor(scores), torch.zeros(3, dtype=torch.int64))
    torch.testing.assert_close(model.losses(clips, others, 12)["alterations"].detach(), expected)


def test_clvp_learns_to_rank_the_clearest_candidate_first(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for index in range(60):
        clip = Clip(rng.integers(3, 29, 6).tolist(), rng.integers(100, 1000, 12), 0, None, index)
        codes = [rng.integers(100, 1000, 12) for _ in range(CANDIDATES)]
        nats = torch.ones(1 + CANDIDATES)
        clear = rng.integers(CANDIDATES)
        codes[clear], nats[1 + clear] = rng.integers(0, 10, 12), 0.0
        rows.append(ScoredCandidates(clip, [clip.codes, *codes], nats))
    clips = [one.clip for one in rows]
    train_clvp(tmp_path, CONFIGS["clvp"], dataclasses.replace(CONFIGS["autoregressive"], max_mel_tokens=20), clips,
               clips, lambda: rows, PartSchedule(steps=(60,), rate=3e-3, warmup=5), "cpu")
    last = json.loads((tmp_path / "curve.json").read_text())[-1]
    assert last["ranking gain, validation"] == 1.0
    assert 0 < last["accuracy, own codes, validation"] <= 1


def test_ranking_gain_is_a_share_of_the_possible_gain():
    nats = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert ranking_gain(-nats, nats) == 1.0
    assert ranking_gain(nats, nats) == -1.0
    assert ranking_gain(nats, torch.ones(2, 3)) == 0.0
    assert ranking_gain(nats, torch.full((2, 3), torch.inf)) == 0.0
