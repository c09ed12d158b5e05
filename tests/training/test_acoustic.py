"""Training of FastSpeech on clips whose durations are known."""

import numpy as np
import pytest
import torch

from ane.models.fastspeech.networks.acoustic import FastSpeechConfig
from ane.models.fastspeech.text import IDS
from tests.training.timed_teacher import ToneTeacher
from training.acoustic import AcousticData, FastSpeechInTraining, losses_of, predicted_mel, train_fastspeech
from training.symbols import TeacherLexicon, timed_symbols
from training.timed_speech import load_timed_shard, speak_timed_shard
from training.trainer import PartSchedule

TINY = FastSpeechConfig(max_seq_len=300, d_model=32, phoneme_side_n_layer=1, phoneme_side_head=1,
                        phoneme_side_conv1d_filter_size=32, mel_side_n_layer=1, mel_side_head=1,
                        mel_side_conv1d_filter_size=32, duration_predictor_filter_size=16)
WORDS = ["one", "two", "three", "four", "five", "the", "that", "this", "then", "when", "house"]
TEXTS = ["one two, three.", "that house", "when this, then that?", "the one", "four five", "two three four"] * 3


@pytest.fixture
def lexicon(monkeypatch) -> TeacherLexicon:
    for module in ("symbols", "timed_speech"):
        monkeypatch.setattr(f"training.{module}.flite_voice", ToneTeacher)
    monkeypatch.setattr("training.symbols.spoken_words", lambda: (WORDS, list(range(1, len(WORDS) + 1))))
    return TeacherLexicon("rms", None)


@pytest.fixture
def shard(tmp_path, lexicon):
    path = tmp_path / "0000-rms.npz"
    speak_timed_shard(path, TEXTS, "rms", None, 0)
    return path


def test_a_batch_joins_clips_and_its_symbols_have_the_frames_of_its_mel(shard, lexicon):
    data = AcousticData(load_timed_shard(shard), lexicon, TINY.max_seq_len)
    joined = set()
    for seed in range(20):
        batch = data.batch(range(12), np.random.default_rng(seed))
        assert batch.frames.sum(1).tolist() == batch.mel_mask.sum(1).tolist()
        assert batch.mel.shape[1] <= TINY.max_seq_len
        assert ((batch.ids == IDS["_"]) == (batch.mask == 0)).all()
        joined.add(12 // len(batch.ids))
    assert {1, 2, 3} <= joined


def test_durations_of_stretched_clips_are_not_learned(shard, lexicon):
    clips = load_timed_shard(shard)
    batch = AcousticData(clips, lexicon, TINY.max_seq_len).batch(range(len(clips)), np.random.default_rng(0), False)
    for row, clip in zip(batch.normal, clips, strict=True):
        assert set(row[:5].tolist()) == {float(clip.stretch == 1.0)}


def test_strings_of_words_have_a_sound_for_every_letter(shard, lexicon):
    ids, sounds, mask = AcousticData(load_timed_shard(shard), lexicon, 300).strings(np.random.default_rng(0))
    assert ((sounds >= 0) == ((ids >= IDS["a"]) & (mask > 0))).all()


def test_training_lowers_every_loss_and_resumes(tmp_path, shard, lexicon):
    data = AcousticData(load_timed_shard(shard), lexicon, TINY.max_seq_len)
    batch = data.batch(range(8), np.random.default_rng(1), varied=False)
    torch.manual_seed(0)
    before = losses_of(FastSpeechInTraining(TINY, len(lexicon.sounds)), batch)
    for steps in ((2,), (2, 40)):
        network = train_fastspeech(tmp_path / "run", TINY, [shard], [shard], lexicon,
                                   PartSchedule(steps, 3e-3, warmup=5), "cpu")
    module = FastSpeechInTraining(TINY, len(lexicon.sounds))
    module.load_state_dict(torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["module"])
    after = losses_of(module, batch)
    for name, value in before.items():
        assert after[name] < 0.8 * value, name

    clip = data.clips[0]
    mel = predicted_mel(network, timed_symbols(clip, lexicon))
    assert mel.shape == clip.mel.shape
    assert np.abs(mel - clip.mel).mean() < np.abs(clip.mel - clip.mel.mean()).mean()
