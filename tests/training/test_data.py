"""What the embedded voice learns from: texts, tokens, codes and batches."""

import dataclasses
import random
import re
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.audio.mel import HOP
from ane.backends.torch.backend import TorchBackend
from ane.bundles import open_model
from ane.models.tortoise.decoding import Chunk, decode
from ane.models.tortoise.embeddings import text_tokens
from ane.models.tortoise.networks.clvp import CLVP
from ane.models.tortoise.sampling import Sampling, by_inverse_cdf
from ane.text import Tokenizer
from ane.voices import load_voice
from training.clips import Batches, Clip
from training.decoder import DecoderInTraining, columns_of
from training.grammar import GRAMMAR, plain_sentence
from training.inherited import CODED, copy_fitting, heard_as, inherit_decoder
from training.quantiser import ENTRY, Quantiser, smoothing, write_codes
from training.recipe import CALM, CHARACTERS, CONFIGS, tokenizer_json
from training.speech import RATE, Shard, levelled
from training.text import LONGEST, clips, held_out_sentences, word_runs
from training.trained import TrainedModel
from training.vocoders import EDGE, judged, steepest


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory):
    """A folder in WordNet's format: a licence, then synsets whose glosses follow a bar."""
    folder = tmp_path_factory.mktemp("wordnet")
    lines = ["  1 This software and database is being provided to you",
             '00001740 03 n 01 entity 0 003 ~ 00001930 n 0000 | that which is perceived; "he saw an (old) entity"',
             '00002684 03 n 01 object 0 001 @ 00001930 n 0000 | a tangible entity; "it was full of ABC objects"; '
             '"she asked her brother to help with the dishes after dinner"']
    for part in ("noun", "verb", "adj", "adv"):
        (folder / f"data.{part}").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder


def test_every_rule_that_the_grammar_names_is_there():
    named = {name for options in GRAMMAR.values() for name in re.findall(r"<(\w+)>", options)}
    assert named | {"sentence"} == set(GRAMMAR)


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_a_plain_sentence_ends_and_is_written_in_the_letters_of_the_tokenizer(seed):
    sentence = plain_sentence(random.Random(seed))
    assert set(sentence) <= set(CHARACTERS)
    assert sentence[-1] in ".?!"


def test_texts_come_from_all_sources_and_the_same_seed_gives_the_same(wordnet):
    texts = list(islice(clips(wordnet, 3), 300))
    assert texts == list(islice(clips(wordnet, 3), 300))
    assert texts != list(islice(clips(wordnet, 4), 300))
    assert len(set(texts)) == 300
    assert "he saw an entity" in texts
    assert "a tangible entity" in texts
    assert all(len(text) <= LONGEST and set(text) <= set(CHARACTERS) for text in texts)


def test_no_text_is_like_a_held_out_sentence(wordnet):
    held_out = held_out_sentences()
    assert len(held_out) >= 100
    assert len(set(held_out)) == len(held_out)
    assert word_runs(held_out).isdisjoint(word_runs(islice(clips(wordnet, 5), 500)))


@given(st.text(max_size=60))
def test_the_tokenizer_gives_letters_back_and_knows_nothing_else(text):
    tokenizer = Tokenizer(tokenizer_json())
    ids = tokenizer.encode_normalised(text)
    assert tokenizer.decode(ids) == "".join(letter for letter in text.lower() if letter in CHARACTERS)
    assert max(ids, default=0) < tokenizer.size == CONFIGS["autoregressive"].number_text_tokens


@settings(max_examples=30)
@given(st.lists(st.integers(10, 200), min_size=1, max_size=300), st.integers(0, 5))
def test_an_epoch_of_batches_holds_every_clip_once(lengths, epoch):
    batches = Batches(lengths, 600, seed=1)
    seen = np.concatenate(batches.epoch(epoch))
    assert sorted(seen) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) < 600 + 200 + max(lengths) for batch in batches.epoch(epoch))


def test_each_shard_gets_the_codes_of_its_own_voice(tmp_path):
    torch.manual_seed(0)
    quantiser = Quantiser(16, 2)
    mel = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float16)
    paths = [tmp_path / f"{index:04d}-{voice}.npz" for index, voice in enumerate(("rms", "slt"))]
    for path in paths:
        Shard(["a", "b"], np.zeros(4, np.int16), np.array([2, 2]), mel, np.array([16, 24])).save(path)
    for path, voice in zip(write_codes(tmp_path / "codes", quantiser, paths, ("rms", "slt"), 1), (0, 1), strict=True):
        for codes, part in zip(np.split(np.load(path), [4]), np.split(mel, [16]), strict=True):
            wanted = quantiser.codes(torch.from_numpy(part.T.astype(np.float32))[None], torch.tensor([voice]))[0]
            assert codes.tolist() == wanted.tolist()


def test_levelled_speech_is_equally_loud_and_has_short_silent_ends():
    time = np.arange(RATE) / RATE
    tone = 0.1 * np.sin(2 * np.pi * 200 * time).astype(np.float32)
    quiet = np.concatenate((np.zeros(RATE, np.float32), tone, np.zeros(2 * RATE, np.float32)))
    ours = levelled(quiet)
    assert len(ours) / RATE == pytest.approx(1.18, abs=0.02)
    assert np.sqrt((ours ** 2).mean()) == pytest.approx(np.sqrt((levelled(quiet * 3) ** 2).mean()), rel=0.01)
    assert len(levelled(np.zeros(RATE, np.float32))) == 0


def test_a_quantiser_gives_one_code_for_four_frames_and_restarts_what_nobody_chooses():
    torch.manual_seed(0)
    quantiser, voices = Quantiser(16, 2), torch.tensor([0, 1, 0, 1])
    mel = torch.randn(4, 80, 32)
    codes = quantiser.codes(mel, voices)
    assert codes.shape == (4, 8)
    assert quantiser.mel(codes, voices).shape == mel.shape
    assert not torch.equal(quantiser.mel(codes, voices), quantiser.mel(codes, 1 - voices))
    encodings = torch.randn(64, ENTRY)
    quantiser.follow(encodings, torch.zeros(64, dtype=torch.int64), torch.Generator().manual_seed(0))
    for entry in quantiser.entries[1:]:         # all but the chosen one
        assert (entry == encodings).all(dim=1).any()


def test_the_smooth_shape_of_a_mel_keeps_formants_and_drops_harmonics():
    band = torch.arange(80)
    formants, harmonics = torch.cos(band / 80 * torch.pi * 5), torch.cos(band * torch.pi * 2 / 3)
    assert (smoothing() @ formants - formants).abs().mean() < 0.1
    assert (smoothing() @ harmonics).abs().mean() < 0.1


def test_a_tick_in_silence_costs_more_than_the_silence():
    still = torch.zeros(1, 4096)
    tick = still.clone()
    tick[0, 2000] = 0.01
    assert (steepest(tick) - steepest(still)).sum() > 2
    assert (steepest(tick) > steepest(still)).sum() == 1


def test_the_ends_of_a_crop_are_judged_only_where_the_clip_ends_there_too():
    audio = torch.arange(20 * HOP)[None]
    assert judged(audio).tolist() == audio[:, EDGE * HOP:-EDGE * HOP].tolist()
    assert judged(audio, begins=True).tolist() == audio[:, :-EDGE * HOP].tolist()
    assert judged(audio, ends=True).tolist() == audio[:, EDGE * HOP:].tolist()


def test_codes_of_a_new_quantiser_begin_as_the_earlier_codes_that_sound_so():
    """One that hears the same code always learns how often the earlier voice speaks each of its own."""
    torch.manual_seed(0)
    earlier, quantiser = open_model(bundle="demo"), Quantiser(CALM, 2)
    quantiser.entries[1:] = 1e6                 # nothing is near these
    texts, voices = ["hello there", "good morning"], ("rms", "slt")
    model = DecoderInTraining(CONFIGS["autoregressive"], 2, 0.7)
    inherit_decoder(model, earlier, voices, quantiser, texts)
    theirs, ours = earlier.tensors("autoregressive"), model.network.state_dict()
    old, new = earlier.config("autoregressive"), model.config
    shares = heard_as(earlier, voices, quantiser, texts)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(len(shares)))
    torch.testing.assert_close(shares[1], shares[2])        # never heard: as often as anywhere
    torch.testing.assert_close(shares[0], shares[1])        # always heard: so is this
    assert (shares[0] > 0).sum() > 10
    for key in ("gpt.h.0.attn.c_attn.weight", "text_embedding.weight"):
        torch.testing.assert_close(ours[key], theirs[key].float())
    for key in CODED:
        torch.testing.assert_close(ours[key][new.stop_mel_token], theirs[key][old.stop_mel_token].float())
        torch.testing.assert_close(ours[key][0], shares[0] @ theirs[key][:old.calm_token].float())
    kept = load_voice(earlier.voices / "slt.safetensors", "slt")
    np.testing.assert_allclose(model.voices[1].detach().numpy(), kept.ar[0])


def test_a_network_begins_with_what_fits_of_the_earlier_one_and_without_what_it_is_told_to_leave():
    earlier = open_model(bundle="demo")
    config = dataclasses.replace(earlier.config("clvp"), num_text_tokens=9)
    torch.manual_seed(0)
    network = CLVP(config)
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    copy_fitting(network, earlier, "clvp", ("speech_emb.weight",))
    theirs, ours = earlier.tensors("clvp"), network.state_dict()
    assert before["text_emb.weight"].shape != theirs["text_emb.weight"].shape
    for key in ours:
        left = key in ("speech_emb.weight", "text_emb.weight")
        torch.testing.assert_close(ours[key], before[key] if left else theirs[key].float())


def test_training_sees_the_very_columns_that_the_pipeline_makes():
    """Latents of codes in training equal those that sampling gave, the silence after the end included."""
    torch.manual_seed(1)
    config = CONFIGS["autoregressive"]
    model = DecoderInTraining(config, voices=2, characters_per_code=0.7).eval()
    with torch.no_grad():
        model.network.mel_head.bias[config.stop_mel_token] = 2.0       # so that readings end
    trained = TrainedModel({"autoregressive": model.network}, np.ones(80, np.float32), "rms")
    text = Tokenizer(tokenizer_json()).encode("hello there")
    sampling, choices = Sampling(repetition_penalty=1.0, max_codes=60), [by_inverse_cdf(np.random.default_rng(5))]
    chunk = Chunk(model.voices[1:].detach().numpy(), text_tokens(text, config), choices)
    [[reading]] = decode(TorchBackend(trained, "cpu"), [chunk], config, sampling)
    assert reading.stopped
    columns, positions, predicted, first = columns_of(
        Clip(text, np.array(reading.codes), voice=1, shard=None, index=0), config)
    hidden = model(torch.from_numpy(columns)[None], torch.from_numpy(positions)[None])[0, first:].detach().numpy()
    np.testing.assert_allclose(hidden[:len(reading.latents)], reading.latents, atol=2e-4)
    assert len(reading.latents) == len(reading.codes) + config.calm_run
    assert (predicted[first:first + len(reading.codes)] - config.number_text_tokens - 1 == reading.codes).all()
