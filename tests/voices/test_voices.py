"""Test voices that are encoded from clips, found by name or mix, and cached, with the encoders of the golden set."""

import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from ane.audio import write
from ane.backends import load_backend
from ane.models.tortoise.family import STAGES
from ane.models.tortoise.voices import (
    CONDITIONING_SAMPLES,
    conditioning_window,
    encode_clips,
    random_voice,
    resolve_voice,
)
from ane.system import paths
from ane.voices import Voice, load_voice, save_voice
from tests.refusals import assert_refused


class CountingBackend:
    """Records the stages that a backend runs and the networks that it releases."""

    def __init__(self, backend):
        self.backend = backend
        self.runs: list[str] = []
        self.released: set[str] = set()

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        self.runs.append(stage)
        return self.backend.run(stage, **inputs)

    def release(self, *networks: str) -> None:
        self.released |= set(networks)


@pytest.fixture(scope="module")
def model(golden_model):
    return golden_model


@pytest.fixture
def backend(model):
    return CountingBackend(load_backend("torch:cpu", model))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    (tmp_path / "voices").mkdir()
    return tmp_path / "voices"


@pytest.fixture
def resolve(model, backend, folder):
    def call(spec: str, **changes) -> Voice:
        arguments = {
            "folders": [folder],
            "backend": backend,
            "mel_norms": model.mel_norms,
            "model_id": "tiny",
            "widths": model.widths,
            "rng": np.random.default_rng(5),
        } | changes
        return resolve_voice(str(spec), **arguments)

    return call


def speech(seconds: float = 1.0, seed: int = 0, rate: int = 22050) -> np.ndarray:
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * (120 + 40 * seed) * time) + rng.normal(0, 0.05, len(time))).astype(np.float32)


def add_clips(folder: Path, name: str, count: int = 1, seed: int = 0, seconds: float = 1.0) -> list[Path]:
    (folder / name).mkdir(parents=True, exist_ok=True)
    files = [folder / name / f"{number}.wav" for number in range(count)]
    for number, file in enumerate(files):
        write(file, speech(seconds, seed + number), 22050)
    return files


def add_latents(folder: Path, name: str, value: float, suffix: str = ".safetensors") -> Voice:
    voice = Voice(np.full((1, 32), value, np.float32), np.full((1, 80), -value, np.float32), name)
    save_voice(folder / f"{name}{suffix}", voice)
    return voice


def same(a: Voice, b: Voice) -> bool:
    return np.array_equal(a.ar, b.ar) and np.array_equal(a.diffusion, b.diffusion)


# encoding


def test_clips_of_any_rate_and_length_give_latents_of_the_models_widths(model, backend):
    clips = [(speech(0.6, 0, 48000), 48000), (speech(7.0, 1, 16000), 16000), (speech(6.0, 2), 22050)]
    voice = encode_clips(clips, backend, model.mel_norms, np.random.default_rng(0), name="pat")
    assert voice.widths == model.widths
    assert voice.ar.dtype == voice.diffusion.dtype == np.float32
    assert voice.from_clips
    singles = [encode_clips([clip], backend, model.mel_norms, np.random.default_rng(0)) for clip in clips]
    np.testing.assert_allclose(voice.ar, np.mean([one.ar for one in singles], axis=0), atol=1e-5)
    np.testing.assert_allclose(voice.diffusion, np.mean([one.diffusion for one in singles], axis=0), atol=1e-6)
    assert_refused("no clips", lambda: encode_clips([], backend, model.mel_norms, np.random.default_rng(0)))


def test_only_clips_longer_than_six_seconds_draw_a_start_in_order():
    rng, expected = np.random.default_rng(3), np.random.default_rng(3)
    for samples in (CONDITIONING_SAMPLES + 5000, 1000, CONDITIONING_SAMPLES, CONDITIONING_SAMPLES + 1):
        audio = np.arange(1, samples + 1, dtype=np.float32)
        start = expected.integers(0, samples - CONDITIONING_SAMPLES + 1) if samples > CONDITIONING_SAMPLES else 0
        window = conditioning_window(audio, rng)
        cropped = audio[start : start + CONDITIONING_SAMPLES]
        np.testing.assert_array_equal(window[: len(cropped)], cropped)
        assert len(window) == CONDITIONING_SAMPLES
        assert not window[len(cropped) :].any()
    assert rng.random() == expected.random()


# resolving


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_folder_with_one_file_of_latents_is_that_voice_and_nothing_is_drawn_or_run(folder, resolve, backend, suffix):
    voice, rng = add_latents(folder / "pat", "any", 2.0, suffix), np.random.default_rng(5)
    assert same(resolve("pat", rng=rng), voice)
    assert resolve("pat").name == "pat"
    assert backend.runs == []
    assert rng.random() == np.random.default_rng(5).random()


def test_a_path_that_looks_like_a_mix_is_one_path(tmp_path, resolve):
    voice = add_latents(tmp_path, "a&b:2", 3.0)
    assert same(resolve(tmp_path / "a&b:2.safetensors"), voice)


def test_a_random_voice_is_drawn_from_the_requests_generator(resolve, model, backend):
    first, again = resolve("random"), resolve("random")
    assert same(first, again)
    assert first.widths == model.widths
    assert not same(first, resolve("random", rng=np.random.default_rng(6)))
    rng = np.random.default_rng(5)
    ar, diffusion = (rng.standard_normal((1, width), dtype=np.float32) for width in model.widths)
    np.testing.assert_array_equal(first.ar, backend.run("ar_random", noise=ar))
    np.testing.assert_array_equal(first.diffusion, backend.run("diffusion_random", noise=diffusion))


def test_random_is_one_voice_of_a_mix(resolve, folder, model, backend):
    pat = add_latents(folder, "pat", 1.0)
    drawn = random_voice(backend, model.widths, np.random.default_rng(5))
    np.testing.assert_allclose(resolve("pat&random").ar, (pat.ar + drawn.ar) / 2, atol=1e-6)
    np.testing.assert_allclose(resolve("random:0.25&pat:0.75").ar, 0.75 * pat.ar + 0.25 * drawn.ar, atol=1e-6)


def test_a_mix_of_clips_without_weights_pools_the_clips(resolve, folder):
    add_clips(folder, "a", 1, seed=0)
    add_clips(folder, "b", 3, seed=4)
    pooled = resolve("a&b")
    a, b = resolve("a"), resolve("b")
    np.testing.assert_allclose(pooled.ar, (a.ar + 3 * b.ar) / 4, atol=1e-5)
    np.testing.assert_allclose(resolve("a:1&b:1").ar, (a.ar + b.ar) / 2, atol=1e-5)
    assert pooled.from_clips
    assert resolve("a:1&b:1").from_clips


def test_clips_mix_with_latents_as_one_voice_each(resolve, folder):
    add_clips(folder, "a", 2)
    latents = add_latents(folder, "b", 3.0)
    mixed = resolve("a&b")
    np.testing.assert_allclose(mixed.diffusion, (resolve("a").diffusion + latents.diffusion) / 2, atol=1e-5)
    assert mixed.name == "a&b"


def test_upstreams_list_of_raw_clips_gives_the_voice_of_those_clips(resolve, folder, model, backend):
    audio = [speech(1.0, seed) for seed in range(2)]
    torch.save([torch.from_numpy(samples)[None] for samples in audio], folder / "raw.pth")
    expected = encode_clips([(samples, 22050) for samples in audio], backend, model.mel_norms, np.random.default_rng(0))
    assert same(resolve("raw"), expected)


def test_a_voice_of_another_width_is_refused(resolve, folder):
    wide = Voice(np.ones((1, 1024), np.float32), np.ones((1, 2048), np.float32), "wide")
    save_voice(folder / "wide.safetensors", wide)
    assert_refused(
        "wide was made with another model, because its latents have the widths 1024 and 2048", resolve, "wide"
    )


def test_an_unfit_clip_among_good_ones_is_named(resolve, folder):
    add_clips(folder, "a", 2)
    write(folder / "a" / "9.wav", np.zeros(22050, np.float32), 22050)
    assert_refused(r"9\.wav: is silent", resolve, "a")


def test_the_encoders_are_released_after_the_voice_is_computed(resolve, folder, backend):
    add_clips(folder, "a")
    resolve("a&random")
    assert {STAGES[stage].network for stage in backend.runs} <= backend.released


# cache


def cached() -> list[Path]:
    return sorted((paths.cache_dir() / "voices").glob("*"))


def test_clips_are_encoded_once_whatever_their_names_and_times(resolve, folder, backend):
    add_clips(folder, "a", 2)
    first = resolve("a")
    again = resolve("a")
    assert (again.name, again.source) == ("a", "0.wav, 1.wav")
    os.rename(folder / "a", folder / "b")
    os.utime(folder / "b" / "0.wav", (0, 0))
    renamed = resolve("b")
    assert renamed.name == "b"
    assert len(backend.runs) == 4
    for voice in (again, renamed):
        assert same(first, voice)
        assert first.from_clips is voice.from_clips is True
    write(folder / "b" / "0.wav", speech(1.0, 9), 22050)
    resolve("b")
    assert len(backend.runs) > 4


@pytest.mark.parametrize("change", [{"model_id": "other"}, {"seed": 1}])
def test_another_model_or_seed_is_another_entry(resolve, folder, change):
    add_clips(folder, "a")
    resolve("a")
    resolve("a", **change)
    assert len(cached()) == 2


def test_each_clip_mode_is_another_entry(resolve, folder):
    add_clips(folder, "a")
    for mode in ("first", "slices", "whole"):
        resolve("a", mode=mode)
    assert len(cached()) == 3


def test_the_seed_determines_the_crop(resolve, folder):
    add_clips(folder, "a", seconds=8.0)
    voices = [
        resolve("a", seed=seed, cache=False, rng=np.random.default_rng(request))
        for request, seed in enumerate((0, 0, 1))
    ]
    assert same(voices[0], voices[1])
    assert not np.array_equal(voices[0].ar, voices[2].ar)
    assert cached() == []


def test_a_damaged_entry_is_computed_again(resolve, folder):
    add_clips(folder, "a")
    good = resolve("a")
    entry = cached()[0]
    nan, wide = folder / "nan.safetensors", folder / "wide.safetensors"
    for path, value in ((nan, np.nan), (wide, 1.0)):
        ar, diffusion = np.full((1, 7), value, np.float32), np.ones((1, 9), np.float32)
        safetensors.numpy.save_file({"ar_latent": ar, "diffusion_latent": diffusion}, path)
    for content in (entry.read_bytes()[:-100], b"not a voice", b"", nan.read_bytes(), wide.read_bytes()):
        entry.write_bytes(content)
        assert same(resolve("a"), good)
        assert same(load_voice(entry), good)


def test_a_cache_that_cannot_be_written_is_skipped(resolve, folder, tmp_path):
    add_clips(folder, "a")
    (tmp_path / "home").write_text("a file where the folder should be")
    assert resolve("a").name == "a"
