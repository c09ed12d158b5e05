"""Train each part for a few steps, test a whole run, and test the training data and the model card."""

import dataclasses
import json
import random
import re
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.audio.loudness import LoudnessMeter
from ane.audio.mel import HOP, conditioning_mel
from ane.backends.torch.backend import TorchBackend
from ane.bundles.writing import write_bundle
from ane.models.tortoise.chunks import text_tokens
from ane.models.tortoise.decoding import pad_codes, score_candidates
from ane.models.tortoise.networks.conditioning import ConditioningEncoder
from ane.models.tortoise.sampling import InverseCdfSampler, Sampling
from ane.text import Tokenizer
from tests.decoding import ChunkPrompt, decode
from tests.refusals import assert_refused
from training.another_fast_voice import Lessons, heart
from training.decoder import FRAMES, DecoderInTraining, DecoderObjective, train_decoder, training_sequence
from training.denoiser import train_denoiser
from training.encoders import train_encoder
from training.kokoro_speech import Utterance
from training.pitch import MIDDLE, RATE, pitch_of
from training.publish import LICENCES, data_section, score_section, trained_contents
from training.quantiser import ENTRY, Quantiser, envelope_matrix, train_quantiser, write_codes
from training.ranking import CLVPInTraining, train_clvp
from training.recipe import CHARACTERS, CONFIG, CONFIGS, SETTINGS, TRAINED_PARTS, load_recipe, tokenizer_json
from training.run import TrainingRun
from training.source_filter import parameters_of, train_source_filter
from training.speech import LOUDNESS, Batches, Clip, Shard, shard_of, teacher_of, trim_and_level
from training.text import GRAMMAR, MAX_CHARACTERS, held_out_sentences, plain_sentence, training_texts, word_runs
from training.trainer import PartSchedule, TrainedPart, Trainer, fast_autocast
from training.vocoders import EDGE, largest_differences, without_edges


def test_each_shard_is_coded_with_its_own_voice(tmp_path):
    torch.manual_seed(0)
    quantiser = Quantiser(16, 2)
    mel = np.random.default_rng(0).standard_normal((40, 80)).astype(np.float16)
    paths = [tmp_path / f"{index:04d}-{voice}.npz" for index, voice in enumerate(("heart", "michael"))]
    for path in paths:
        Shard(["a", "b"], np.zeros(4, np.int16), np.array([2, 2]), mel, np.array([16, 24])).save(path)
    found = write_codes(tmp_path / "codes", quantiser, paths, ("heart", "michael"))
    for path, voice in zip(found, (0, 1), strict=True):
        for codes, part in zip(np.split(np.load(path), [4]), np.split(mel, [16]), strict=True):
            wanted = quantiser.codes(torch.from_numpy(part.T.astype(np.float32))[None], torch.tensor([voice]))[0]
            assert codes.tolist() == wanted.tolist()


def test_a_quantiser_gives_one_code_for_four_frames_and_resets_unused_entries():
    torch.manual_seed(0)
    quantiser, voices = Quantiser(16, 2), torch.tensor([0, 1, 0, 1])
    mel = torch.randn(4, 80, 32)
    codes = quantiser.codes(mel, voices)
    assert codes.shape == (4, 8)
    assert quantiser.mel(codes, voices).shape == mel.shape
    assert not torch.equal(quantiser.mel(codes, voices), quantiser.mel(codes, 1 - voices))
    encodings = torch.randn(64, ENTRY)
    quantiser.update_codebook(encodings, torch.zeros(64, dtype=torch.int64), torch.Generator().manual_seed(0))
    for entry in quantiser.codebook[1:]:  # every code except the one that is used
        assert (entry == encodings).all(dim=1).any()


def test_the_envelope_of_a_mel_keeps_formants_and_drops_harmonics():
    band = torch.arange(80)
    formants, harmonics = torch.cos(band / 80 * torch.pi * 5), torch.cos(band * torch.pi * 2 / 3)
    assert (envelope_matrix() @ formants - formants).abs().mean() < 0.1
    assert (envelope_matrix() @ harmonics).abs().mean() < 0.1


def test_clvp_in_training_gives_the_scores_of_the_pipeline(tmp_path):
    torch.manual_seed(0)
    config, text = CONFIGS["autoregressive"], Tokenizer(tokenizer_json()).encode_normalised("we were here.")
    model = CLVPInTraining(CONFIGS["clvp"], config).eval()
    contents = trained_contents({"clvp": model.network}, np.ones(80, np.float32), "heart")
    backend = TorchBackend(write_bundle(contents, tmp_path / "bundle"), "cpu")
    codes, buffer = [np.arange(12), np.arange(40, 90)], SETTINGS["sampling"]["max_codes"]
    expected = score_candidates(
        backend, text_tokens(text, config), np.stack([pad_codes(each, buffer, config) for each in codes])
    )
    assert model.max_codes == buffer
    found = (model.text([text]) @ model.speech(codes, buffer).T)[0]
    np.testing.assert_allclose(found.detach(), expected, atol=1e-4)


def test_clvp_learns_which_codes_belong_to_a_text(tmp_path):
    rng = np.random.default_rng(0)
    clips = [
        Clip(text.tolist(), np.repeat(20 * text, 2), 0, None, index)
        for index, text in enumerate(rng.integers(3, 29, (60, 6)))
    ]
    train_clvp(
        TrainedPart(tmp_path, PartSchedule(steps=(40,), rate=3e-3, warmup=5, batch=8), "cpu", tmp_path / "none"),
        CONFIGS["clvp"],
        dataclasses.replace(CONFIGS["autoregressive"], max_mel_tokens=20),
        clips,
        clips,
    )
    assert json.loads((tmp_path / "curve.json").read_text())[-1]["accuracy, validation"] > 0.5


def test_latents_in_training_equal_those_of_the_pipeline(tmp_path):
    """Those of the silence after the end included."""
    torch.manual_seed(1)
    config = CONFIGS["autoregressive"]
    model = DecoderInTraining(config, voices=2, characters_per_code=0.7).eval()
    with torch.no_grad():
        model.network.mel_head.bias[config.stop_mel_token] = 2.0  # so that candidates end
    contents = trained_contents({"autoregressive": model.network}, np.ones(80, np.float32), "heart")
    trained = write_bundle(contents, tmp_path / "bundle")
    text = Tokenizer(tokenizer_json()).encode("hello there")
    sampling, choices = Sampling(repetition_penalty=1.0, max_codes=60), [InverseCdfSampler(np.random.default_rng(5))]
    chunk = ChunkPrompt(model.voices[1:].detach().numpy(), text_tokens(text, config), choices)
    [[candidate]] = decode(TorchBackend(trained, "cpu"), [chunk], config, sampling)
    assert candidate.stopped
    rows, positions, targets, first = training_sequence(
        Clip(text, np.array(candidate.codes), voice=1, shard=None, index=0), config
    )
    hidden = model(torch.from_numpy(rows)[None], torch.from_numpy(positions)[None])[0, first:].detach().numpy()
    np.testing.assert_allclose(hidden[: len(candidate.latents)], candidate.latents, atol=2e-4)
    assert len(candidate.latents) == len(candidate.codes) + config.calm_run
    assert (targets[first : first + len(candidate.codes)] - config.number_text_tokens - 1 == candidate.codes).all()


def test_pitch_losses_count_voiced_frames_alone():
    pitch = torch.tensor([MIDDLE, 2 * MIDDLE, 0.0, MIDDLE])
    right = torch.tensor([[0.0, 1.0, 55.0, 0.0, 20.0, 20.0, -20.0, 20.0]])  # octaves of FRAMES, then the voicing
    assert right.shape[1] == 2 * FRAMES
    octaves, voicing = DecoderObjective.pitch_losses(right, pitch)
    assert float(octaves) == 0
    assert float(voicing) < 1e-6
    octaves, _ = DecoderObjective.pitch_losses(right + 1, pitch)
    assert float(octaves) == 1


def test_a_click_in_silence_raises_the_loss():
    silence = torch.zeros(1, 4096)
    click = silence.clone()
    click[0, 2000] = 0.01
    assert (largest_differences(click) - largest_differences(silence)).sum() > 2
    assert (largest_differences(click) > largest_differences(silence)).sum() == 1


def test_the_loss_ignores_edges_of_a_crop_except_at_the_ends_of_its_clip():
    audio = torch.arange(20 * HOP)[None]
    assert without_edges(audio).tolist() == audio[:, EDGE * HOP : -EDGE * HOP].tolist()
    assert without_edges(audio, at_start=True).tolist() == audio[:, : -EDGE * HOP].tolist()
    assert without_edges(audio, at_end=True).tolist() == audio[:, EDGE * HOP :].tolist()


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
    second, run = latents(1)  # a second training in the same folder, to the same step
    [expected] = run.compute_latents(run.autoregressive, [clip])
    np.testing.assert_array_equal(second, expected.numpy())
    assert not np.array_equal(first, second)
    run.compute_latents = None  # a second computation would fail here
    del run.latents
    np.testing.assert_array_equal(run.latents[clip.shard, clip.index], second)


def test_every_rule_that_is_referred_to_exists():
    named = {name for options in GRAMMAR.values() for name in re.findall(r"<(\w+)>", options)}
    assert named | {"sentence"} == set(GRAMMAR)


@settings(deadline=None)
@given(st.integers(0, 10**9))
def test_a_plain_sentence_has_an_end_mark_and_only_characters_of_the_tokenizer(seed):
    sentence = plain_sentence(random.Random(seed))
    assert set(sentence) <= set(CHARACTERS)
    assert sentence[-1] in ".?!"


def test_texts_come_from_all_sources_and_depend_on_the_seed_alone(wordnet):
    texts = list(islice(training_texts(wordnet, 3), 300))
    assert texts == list(islice(training_texts(wordnet, 3), 300))
    assert texts != list(islice(training_texts(wordnet, 4), 300))
    assert len(set(texts)) == 300
    assert "he saw an entity" in texts
    assert "a tangible entity" in texts
    assert all(len(text) <= MAX_CHARACTERS and set(text) <= set(CHARACTERS) for text in texts)


def test_no_text_resembles_a_held_out_sentence(wordnet):
    held_out = held_out_sentences()
    assert len(held_out) >= 100
    assert len(set(held_out)) == len(held_out)
    assert word_runs(held_out).isdisjoint(word_runs(islice(training_texts(wordnet, 5), 500)))


TIME = np.arange(RATE) / RATE
TONE = 0.1 * np.sin(2 * np.pi * 200 * TIME).astype(np.float32)
SPOKEN = Utterance(np.arange(3), np.array([4, 10, 4]), *np.float32([[100], [0.5]]).repeat(36, 1), TONE[:10800])
STEPS = {
    "quantiser": lambda part, clip: train_quantiser(part, [clip.shard], 16, ["heart"]),
    "decoder": lambda part, clip: train_decoder(part, CONFIGS["autoregressive"], [clip], [clip], 1, Quantiser(16, 1)),
    "denoiser": lambda part, clip: train_denoiser(
        part, CONFIGS["diffusion"], [clip], lambda _: np.ones((len(clip.codes), 192)), 2
    ),
    "encoder": lambda part, clip: train_encoder(
        part,
        ConditioningEncoder(CONFIGS["conditioning_encoder"]),
        lambda: [(voice, TONE) for voice in (0, 1)],
        lambda audio, _: conditioning_mel(audio, np.ones(80)),
        torch.eye(2, 192),
    ),
    "fast voice": lambda part, clip: Trainer(model := heart(), part).run(
        lambda step, generator: Lessons([SPOKEN], 64, 0).losses(model, step, generator)
    ),
    "source filter": lambda part, clip: train_source_filter(
        part,
        CONFIGS["mel_source_filter"],
        lambda: [(np.tile(rows.T, (2, 1))[:100], rows) for rows in parameters_of(clip.shard, part.folder)],
    ),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_is_in_bfloat16_only_on_a_cpu_with_instructions_for_it(tmp_path, monkeypatch, step):
    monkeypatch.setattr("training.source_filter.JUDGED_FROM", 0)
    clip = Clip([3, 4, 5], np.arange(27), 0, tmp_path / "0-heart.npz", 0)
    buzz = (np.sin(700 * TIME) * np.sin(30 * TIME)).astype(np.float32)
    shard_of(["a red boat."], lambda _: np.tile(buzz, 2)[: 5 * RATE // 4], np.ones(80)).save(clip.shard)
    schedule, losses = PartSchedule(steps=(1,), rate=1e-3, batch=1), []
    runs = {"one": (False, torch.float32), "in half": (True, torch.bfloat16), "again": (False, torch.float32)}
    for folder, (native, dtype) in runs.items():
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        with fast_autocast("cpu"):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
        step(TrainedPart(tmp_path / folder, schedule, "cpu", tmp_path / "none"), clip)
        losses.append(json.loads((tmp_path / folder / "curve.json").read_text())[0]["loss"])
    assert losses[0] == losses[2] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.03)


def test_speech_is_equally_loud_with_short_silent_ends():
    quiet = np.concatenate((np.zeros(RATE, np.float32), TONE, np.zeros(2 * RATE, np.float32)))
    ours = trim_and_level(quiet)
    assert len(ours) / RATE == pytest.approx(1.18, abs=0.02)
    np.testing.assert_allclose(ours, trim_and_level(quiet * 3), atol=1e-5)
    meter = LoudnessMeter(RATE)
    meter.feed(ours)
    assert meter.loudness == pytest.approx(LOUDNESS, abs=1.2)  # such a short clip is measured less exactly
    assert len(trim_and_level(np.zeros(RATE, np.float32))) == 0


@pytest.mark.parametrize("hertz", [80.0, 120.0, 210.0, 350.0])
def test_the_pitch_of_a_buzz_is_found_and_noise_and_silence_have_none(hertz):
    buzz = sum(np.sin(2 * np.pi * hertz * n * TIME) / n for n in range(1, 12)).astype(np.float32)
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    found = pitch_of(np.concatenate((0.1 * buzz, 0 * buzz, 0.1 * noise)), 258)
    np.testing.assert_allclose(found[4:80], hertz, rtol=0.02)
    assert (found[92:168] == 0).all()
    assert (found[176:] > 0).mean() < 0.1


def test_an_unknown_teacher_is_refused():
    assert_refused("teacher 'nobody'", teacher_of, "nobody")


@settings(max_examples=30)
@given(st.lists(st.integers(10, 200), min_size=1, max_size=300), st.integers(0, 5))
def test_an_epoch_contains_every_clip_once(lengths, epoch):
    batches = Batches(lengths, 600, seed=1)
    assert sorted(np.concatenate(batches.epoch(epoch))) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) < 600 + 200 + max(lengths) for batch in batches.epoch(epoch))


def test_every_part_has_a_file_and_every_file_a_part():
    recipe = load_recipe()
    assert tuple(recipe.parts) == TRAINED_PARTS
    assert {path.stem for path in CONFIG.glob("*.toml")} == {"speech", "fast_voice", "clone", *TRAINED_PARTS}
    assert {part.steps for part in recipe.tiny(2).parts.values()} == {(2,)}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("speech", "hours = 16.0", "hour = 16.0", "voices.heart"),
        ("speech", "seed = 0\n", "", "seed"),
        ("speech", "seed", "seed seed", "as a part of a training recipe"),
        ("speech", "0.2", "0.7", "held_back"),
        ("hifigan", "[60000]", "[]", "steps"),
        ("autoregressive", "warmup", "warm", "warm"),
        ("clvp", "batch = 16", "batch = 0", "batch"),
    ],
)
def test_a_recipe_with_wrong_keys_or_values_is_refused_by_file_and_field(tmp_path, file, old, new, message):
    folder = shutil.copytree(CONFIG, tmp_path / "config")
    text = (folder / f"{file}.toml").read_text(encoding="utf-8")
    assert old in text
    (folder / f"{file}.toml").write_text(text.replace(old, new), encoding="utf-8")
    assert_refused(rf"{file}\.toml.*{message}", load_recipe, folder)
    assert_refused(r"\.toml as a part of a training recipe", load_recipe, tmp_path)


@given(st.text(max_size=60))
def test_the_tokenizer_returns_its_characters_and_drops_others(text):
    tokenizer = Tokenizer(tokenizer_json())
    ids = tokenizer.encode_normalised(text)
    assert tokenizer.decode(ids) == "".join(letter for letter in text.lower() if letter in CHARACTERS)
    assert max(ids, default=0) < tokenizer.size == CONFIGS["autoregressive"].number_text_tokens


def test_the_card_states_teachers_with_their_licences_and_scores():
    data = data_section(
        {
            "teachers": ["hibari heart", "kokoro am_michael"],
            "hours": {"heart": 2.0, "michael": 0.5},
            "clips": 10,
            "held_back": 0.2,
        }
    )
    for part in (LICENCES["hibari"], LICENCES["kokoro"], "2.0 hours of heart", "without 20% of", "Princeton"):
        assert part in data
    row = {
        "competitor": "fastest",
        "settings": {"voice": "heart"},
        "value": {"median": 3.5, "low": 3.25, "high": 3.75},
        "figures": {"wer": 0.02, "dnsmos": 3.1, "f0": 200.4},
    }
    scores = score_section({"settings": {"sentences": 40}, "rows": [row]})
    assert "| fastest | heart | 3.50 | 3.25–3.75 | 0.020 | 3.10 | 200 |" in scores
