"""What CLVP learns to rank by: altered texts, readings, and the listener that judges them."""


import dataclasses
import json

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ane.backends.torch.backend import TorchBackend
from ane.models.tortoise.codes import pad_codes
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.ranking import score_candidates
from ane.text import Tokenizer
from training.clips import Clip
from training.decoder import DecoderInTraining
from training.listener import Listener, train_listener
from training.loop import Plan, sent
from training.ranking import (
    ALTERED,
    CLVPInTraining,
    altered,
    gained,
    train_clvp,
    words_by_length,
    words_of,
)
from training.readings import READINGS, Read, listened, read
from training.recipe import CALM, CONFIGS, SETTINGS, tokenizer_json
from training.trained import TrainedModel


@given(st.lists(st.sampled_from(["we", "were", "here", "a", "word", "apart"]), min_size=1, max_size=6),
       st.integers(0, 10**9))
def test_an_altered_text_is_as_long_and_differs_in_the_letters_of_one_word(spoken, seed):
    ids = Tokenizer(tokenizer_json()).ids
    text = ids(" ".join(spoken) + ".")
    words = words_by_length([Clip(ids(known), np.zeros(1, np.int64), 0, None, 0) for known in
                             (" ".join(spoken), "in and that")])
    changed = altered(text, words, np.random.default_rng(seed))
    assert len(changed) == len(text)
    places = words_of(text)
    assert words_of(changed) == places
    assert sum(changed[at] != text[at] for at in places) == 1


def test_what_is_no_word_is_not_altered_and_a_word_of_unknown_length_in_a_letter():
    ids, rng = Tokenizer(tokenizer_json()).ids, np.random.default_rng(0)
    assert altered(ids("'. -"), {}, rng) == ids("'. -")
    changed = altered(ids("electroencephalogram"), {2: [ids("we")]}, rng)
    assert np.count_nonzero(np.array(changed) != ids("electroencephalogram")) == 1


def test_clvp_in_training_scores_as_the_pipeline_does():
    torch.manual_seed(0)
    config, ids = CONFIGS["autoregressive"], Tokenizer(tokenizer_json()).ids
    model = CLVPInTraining(CONFIGS["clvp"], config).eval()
    backend = TorchBackend(TrainedModel({"clvp": model.network}, np.ones(80, np.float32), "rms"), "cpu")
    spoken = [[np.arange(12), np.arange(40, 90)], [np.arange(7), np.arange(300, 310)]]
    rows = [Read(Clip(ids(text), codes[0], 0, None, 0), codes, torch.zeros(2))
            for text, codes in zip(("we were here.", "i wish i was."), spoken, strict=True)]
    buffer = SETTINGS["sampling"]["max_codes"]
    expected = [score_candidates(backend, text_tokens(one.clip.text, config),
                      np.stack([pad_codes(codes, buffer, config) for codes in one.codes])) for one in rows]
    assert model.longest == buffer
    np.testing.assert_allclose(model.scores(rows, buffer).detach(), expected, atol=1e-4)


def test_a_clip_is_compared_with_its_own_altered_texts():
    torch.manual_seed(0)
    model = CLVPInTraining(CONFIGS["clvp"], CONFIGS["autoregressive"])
    clips = [Clip(list(range(at, at + 5)), np.arange(10) + 20 * at, 0, None, at) for at in (3, 8, 13)]
    others = [[token + 10 + step for token in clip.text] for step in range(ALTERED) for clip in clips]
    scores = [[float((model.text([text]) * model.speech(model.heard([clip.codes], 12))).sum().detach())
               for text in (clip.text, *others[place::len(clips)])] for place, clip in enumerate(clips)]
    expected = torch.nn.functional.cross_entropy(torch.tensor(scores), torch.zeros(3, dtype=torch.int64))
    torch.testing.assert_close(model.compared(clips, others, 12)["alterations"].detach(), expected)


def test_clvp_learns_to_choose_what_the_listener_hears_best(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for index in range(60):
        clip = Clip(rng.integers(3, 29, 6).tolist(), rng.integers(100, 1000, 12), 0, None, index)
        codes = [rng.integers(100, 1000, 12) for _ in range(READINGS)]
        misheard = torch.ones(1 + READINGS)
        clear = rng.integers(READINGS)
        codes[clear], misheard[1 + clear] = rng.integers(0, 10, 12), 0.0
        rows.append(Read(clip, [clip.codes, *codes], misheard))
    clips = [one.clip for one in rows]
    train_clvp(tmp_path, CONFIGS["clvp"], dataclasses.replace(CONFIGS["autoregressive"], max_mel_tokens=20), clips,
               clips, lambda: rows, Plan(steps=60, rate=3e-3, warmup=5), "cpu")
    last = json.loads((tmp_path / "curve.json").read_text())[-1]
    assert last["gained by ranking, other texts"] == 1.0
    assert 0 <= last["own codes found, unseen clips"] <= 1


def test_what_choosing_gains_is_a_share_of_what_there_is_to_gain():
    misheard = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert gained(-misheard, misheard) == 1.0
    assert gained(misheard, misheard) == -1.0
    assert gained(misheard, torch.ones(2, 3)) == 0.0
    assert gained(misheard, torch.full((2, 3), torch.inf)) == 0.0


def test_the_listener_hears_a_clip_alike_in_any_batch_and_knows_when_it_is_too_short():
    torch.manual_seed(0)
    listener = Listener(2).eval()
    texts = [[3, 4, 5, 6], [6, 7, 8, 9, 10, 11], [3, 4, 4, 5]]
    codes = [np.arange(2), np.arange(40, 60), np.arange(2)]
    together = listener.misheard(texts, codes, [0, 1, 0])
    apart = torch.cat([listener.misheard([text], [row], [voice])
                       for text, row, voice in zip(texts, codes, (0, 1, 0), strict=True)])
    torch.testing.assert_close(together, apart)
    assert together[:2].isfinite().all()
    assert together[2] == torch.inf     # two letters a code, and the one that comes twice needs a place more
    assert listener.misheard(texts[:1], codes[:1], [1]) != together[0]


def test_the_listener_learns_to_write_down_what_it_hears(tmp_path):
    clips = [Clip([3 + voice, *(3 + codes % 26)], codes, voice, None, 0)
             for codes, voice in zip(np.random.default_rng(0).integers(0, 26, (64, 6)), [0, 1] * 32, strict=True)]
    listener = train_listener(tmp_path, clips, clips, 2, Plan(steps=40, rate=3e-3, warmup=5), "cpu")
    [right, wrong] = listener.misheard([clips[0].text, clips[1].text], [clips[0].codes] * 2, [0, 0])
    assert right < 1 < wrong


def test_the_decoder_reads_a_text_several_times_and_the_listener_hears_each(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setitem(SETTINGS["sampling"], "max_codes", 20)
    config, listener = CONFIGS["autoregressive"], Listener(2)
    voices = np.random.default_rng(0).standard_normal((2, config.model_dim), dtype=np.float32)
    clips = [Clip([3, 4, 5, 6], np.array([*range(12), *[CALM] * silence]), voice, None, 0)
             for voice, silence in ((0, 0), (1, 0), (1, 3))]
    state = sent(DecoderInTraining(config, 2, 0.7).network)
    readings = [[torch.from_numpy(codes) for codes in row] for row in read(state, voices, clips, 5)]
    [[first, *_], *_] = readings
    assert len({tuple(codes.tolist()) for row in readings for codes in row}) == 3 * READINGS
    [[alone, *_]] = read(state, voices, clips[1:2], 6)    # a text's readings are its number's
    np.testing.assert_array_equal(alone, readings[1][0])
    [[other, *_]] = read(state, voices[::-1].copy(), clips[:1], 5)
    assert other.tolist() != first.tolist()

    too_short = Clip([3, 4, 5, 6], np.arange(1), 0, None, 1)
    heard = list(listened(listener, [*clips, too_short], [*readings, readings[0]]))
    assert [one.clip for one in heard] == clips
    assert all(len(one.codes) == len(one.misheard) == 1 + READINGS for one in heard)
    [expected] = listener.misheard([clips[1].text], [clips[1].codes], [1])
    for one in heard[1:]:           # the silence after the end is not listened to
        torch.testing.assert_close(one.misheard[0], expected)
