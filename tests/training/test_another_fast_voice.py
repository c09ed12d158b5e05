"""Another voice in hibari's form: its teacher's parameters, its loss, its training from heart, and its bundle."""

import json

import numpy as np
import pytest
import torch

import ane
from ane.models.durations import durations
from ane.models.hibari.synthesizer import LOG_PITCH_SCALE
from ane.models.phoneme_chunks import symbol_ids
from ane.models.vocoders.harmonic_noise import BINS, HOP, HarmonicNoise, pulses
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.text.phonemes import phonemise
from tests.imported import hibari_graph
from tests.refusals import assert_refused
from training.another_fast_voice import CONFIG, heart, main, read_config
from training.kokoro_speech import Utterance, kokoro_utterances, save_utterances
from training.spectral_distance import SpectralDistance, pulses_of, stretch_spectra, two_sounds

TEXTS = "A red boat.", "It rains.", "Come in.", "Who knows?"
LOWER = 0.7


@torch.no_grad()
def lower_heart(text: str) -> Utterance:
    """What heart says at a lower pitch: a voice whose parameters are known, as Kokoro's are."""
    model = heart().eval()
    ids, _ = symbol_ids(phonemise(text))
    width = model.config.prosody_width
    states = model.text(torch.from_numpy(ids)[None], torch.ones(1, len(ids)))
    counts = np.maximum(np.rint(durations(states[0, :, -1].numpy())), 1).astype(np.int64)
    counts[[0, -1]] = 2
    slow = states[:, :, :width].repeat_interleave(torch.from_numpy(counts), dim=1)
    prosody = model.prosody(slow, torch.ones(slow.shape[:2]))
    prosody[..., 0] *= LOWER
    f0, energy = prosody[0].T.contiguous().numpy()
    frames = torch.cat(
        [
            states[:, :, width:-1].repeat_interleave(torch.from_numpy(2 * counts), dim=1),
            prosody[..., :1].clamp(min=0).log1p() / LOG_PITCH_SCALE,
            prosody[..., 1:],
        ],
        dim=2,
    )
    spectra = model.spectra(frames, torch.ones(frames.shape[:2]))[0].numpy()
    return Utterance(ids, counts, f0, energy, HarmonicNoise(f0, 0).feed(spectra))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on four utterances: its folder."""
    hibari_graph()  # skips without the wheel
    folder = tmp_path_factory.mktemp("run")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (folder / "speech").mkdir()
    save_utterances(folder / "speech" / "0000.npz", [lower_heart(text) for text in TEXTS])
    config = CONFIG.read_text().replace("texts = 120", f"texts = {len(TEXTS)}")
    for name, value in (("steps", "[6]"), ("batch", "256"), ("warmup", "2"), ("average", "0.0")):
        config = "\n".join(f"{name} = {value}" if line.startswith(name + " ") else line for line in config.splitlines())
    (folder / "voice.toml").write_text(config)
    main(["-o", str(folder), "--config", str(folder / "voice.toml"), "--threads", "1"])
    return folder


def test_six_steps_from_heart_lower_the_loss_of_unheard_speech_and_write_a_bundle_that_speaks(run):
    curve = json.loads((run / "fast_voice" / "curve.json").read_text())
    first, last = ([point for point in curve if "validation loss" in point][index] for index in (0, -1))
    assert (first["step"], last["step"]) == (0, 6)
    for name in ("loss", "sound", "pitch"):
        assert last[f"validation {name}"] < first[f"validation {name}"]

    voice, start = ane.load(run / "bundle", threads=1), ane.load(threads=1)
    assert voice.model.default_voice == "michael"
    assert voice.model.manifest.source["teachers"] == ["kokoro am_michael"]
    assert sum(file.stat().st_size for file in (run / "bundle").rglob("*") if file.is_file()) < 10_000_000
    spoken, before = (speaker.speak(TEXTS[0], seed=1) for speaker in (voice, start))
    assert 0.5 < spoken.seconds < 3
    assert np.abs(spoken.audio).max() > 0.05
    assert not np.array_equal(spoken.audio, before.audio)


def test_the_bundle_has_the_trained_weights(run):
    voice = ane.load(run / "bundle", threads=1)
    state = torch.load(run / "fast_voice" / "checkpoint.pt", weights_only=True)["average"]
    for key, stored in voice.model.tensors("hibari").items():
        assert snr_db(state[key].numpy(), stored.numpy()) > (33 if stored.ndim == 2 and "emb" not in key else 120), key
    ids, _ = symbol_ids(phonemise(TEXTS[0]))
    inputs = {"ids": ids[None], "mask": np.ones((1, len(ids)), np.float32)}
    exact = ane.load(run / "bundle", backend="torch:cpu").backend.run("text", **inputs)
    assert snr_db(exact, voice.backend.run("text", **inputs)) > 20


def test_the_same_command_goes_on_from_the_checkpoint(run):
    curve = (run / "fast_voice" / "curve.json").read_text()
    main(["-o", str(run), "--config", str(run / "voice.toml"), "--threads", "1"])
    assert (run / "fast_voice" / "curve.json").read_text() == curve


def test_the_sound_in_torch_is_the_sound_of_the_host(monkeypatch):
    """Apart from the noise, which has other random numbers: it is turned down."""
    rng = np.random.default_rng(0)
    f0 = np.linspace(90, 140, 60).astype(np.float32)
    spectra = rng.normal(-3, 1, (60, 5, BINS)).astype(np.float32)
    spectra[:, 2] = -30
    spectra = spectra.reshape(60, -1)
    source, _ = pulses(f0, 0, 60, 0.0)
    sources = torch.from_numpy(np.stack((source, source)))[:, None]
    [ours], [same] = two_sounds(torch.from_numpy(spectra)[None], sources, torch.Generator())
    host = HarmonicNoise(f0, 0).feed(spectra)
    inside = slice(4 * HOP, -4 * HOP)
    assert snr_db(host[inside], ours.numpy()[inside]) > 60
    assert snr_db(ours.numpy(), same.numpy()) > 60


def test_the_distance_is_least_for_noise_of_the_right_strength():
    """A plain distance would be least for weaker noise, and less still for none that is random."""
    generator, distance = torch.Generator().manual_seed(0), SpectralDistance()
    speech, one, other = (0.1 * torch.randn(1, 48000, generator=generator) for _ in range(3))
    found = {scale: float(distance(scale * one, scale * other, speech)) for scale in (0.5, 0.8, 1.0, 1.25, 2.0)}
    assert min(found, key=found.get) == 1.0
    assert float(distance(one, one, speech)) > found[1.0]


def test_stretching_moves_a_peak_of_the_predicted_spectra():
    head = torch.nn.Linear(1, 5 * BINS)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias.view(5, BINS)[2, 200] = 1.0
    stretch_spectra(head, 0.85)
    assert head.bias.view(5, BINS)[2].argmax() == 170
    assert not head.bias.view(5, BINS)[[0, 1, 3, 4]].any()


def test_pulses_follow_the_pitch_from_two_phases():
    f0 = np.repeat(np.array([100, 0], np.float32), 40)
    one, other = pulses_of(f0, torch.Generator().manual_seed(1)).numpy()
    peaks = [np.flatnonzero(sound[:11000] > 0.9 * sound[:11000].max()) for sound in (one, other)]
    assert [np.median(np.diff(found)[np.diff(found) > 20]) for found in peaks] == [240, 240]
    assert not set(peaks[0]) & set(peaks[1])
    assert not one[13000:].any()


def test_the_silence_around_the_words_is_cut():
    counts, curve = np.array([20, 3, 9]), np.zeros(64, np.float32)
    assert Utterance(counts, counts, curve, curve, curve).between(4, 6) == slice(32, 58)


def test_kokoro_gives_parameters_of_the_whole_sound():
    try:
        utterance = kokoro_utterances("am_michael")("The boat is red.")
    except UserError as error:
        pytest.skip(f"{error}; `python -m benchmarks quality --teacher 'kokoro am_michael'` fetches it")
    assert len(utterance.ids) == len(utterance.durations)
    assert len(utterance.audio) == HOP * len(utterance.f0) == HOP * len(utterance.energy)
    assert len(utterance.f0) == 2 * utterance.durations.sum()
    assert 80 < np.median(utterance.f0[utterance.f0 > 40]) < 150
    silent, heard = (utterance.energy[part].mean() for part in (slice(10), utterance.f0 > 40))
    assert silent < heard


def test_a_wrong_configuration_is_one_line(tmp_path, capsys):
    (tmp_path / "voice.toml").write_text("voice = 3")
    assert_refused("does not describe a voice to train", lambda: read_config(tmp_path / "voice.toml"))
    with pytest.raises(SystemExit):
        main(["-o", str(tmp_path / "run"), "--config", str(tmp_path / "nothing.toml")])
    assert capsys.readouterr().err.count("\n") == 1
