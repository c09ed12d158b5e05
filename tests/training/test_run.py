"""The command that makes the embedded voice, with a stand-in for the teacher and a few steps of everything."""

import itertools
import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ane
from ane.system.errors import UserError
from training import loop
from training.clips import Clip
from training.decoder import DecoderInTraining
from training.loop import Plan, Training, rate_at
from training.parts import Work
from training.recipe import CONFIGS, Recipe
from training.speech import Flite

FLITE = '''#!{python} -S
"""Reads as flite does: a tone for each letter."""
import array, math, sys, wave
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
base = {{"rms": 110, "slt": 180}}[options["-voice"]]
text = open(options["-f"]).read()
tones = [int(9000 * math.sin(math.tau * base * (1 + ord(letter) % 7) * t / 16000))
         for letter in text for t in range(960)]
with wave.open(options["-o"], "wb") as file:
    file.setparams((1, 2, 16000, 0, "NONE", ""))
    file.writeframes(array.array("h", tones).tobytes())
'''
PARTS = ("quantiser", "autoregressive", "univnet", "hifigan", "diffusion", "listener", "clvp",
         "conditioning_encoder", "contextual_embedder", "rlg_auto", "rlg_diffuser")


@pytest.fixture
def teacher(tmp_path):
    program = tmp_path / "flite"
    program.write_text(FLITE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def wordnet(tmp_path):
    folder = tmp_path / "wordnet"
    folder.mkdir()
    for part in ("noun", "verb", "adj", "adv"):
        (folder / f"data.{part}").write_text('00001740 03 n 01 x 0 000 | a thing; "he saw the thing"\n')
    return folder


def train(out, teacher, wordnet, *more, steps=2):
    return subprocess.run([sys.executable, "-m", "training", "--out", out, "--flite", teacher, "--wordnet",
                           wordnet, "--threads", "1", "--workers", "1", "--device", "cpu", *more,
                           *(word for part in PARTS for word in ("--steps", f"{part}={steps}"))],
                          capture_output=True, text=True, timeout=600, check=False)


def test_one_command_makes_a_bundle_that_speaks_and_goes_on_where_it_was_stopped(tmp_path, teacher, wordnet):
    out = tmp_path / "run"
    first = train(out, teacher, wordnet, "--hours", "0.12")
    assert first.returncode == 0, first.stderr
    assert (out / "bundle" / "MODEL.md").read_text().startswith("# The embedded voice")
    assert (out / "autoregressive" / "curve.png").stat().st_size > 1000
    synthesizer = ane.load(out / "bundle", threads=1)
    assert synthesizer.model.trained
    assert not synthesizer.model.clones
    denoiser = synthesizer.backend.denoiser(np.zeros((1, 4, 192), np.float32), np.zeros((1, 160), np.float32), 17)
    assert (denoiser(np.ones((1, 100, 17), np.float32), 900, False)[:, 100:] == -1).all()       # the fixed variance
    stated = json.loads((out / "bundle" / "bundle.json").read_text())["source"]
    assert stated["steps"] == dict.fromkeys(PARTS, 2)
    assert stated["teachers"] == ["flite rms", "flite slt"]
    assert np.isfinite(synthesizer.speak("hello", seed=1, preset="fastest").audio).all()
    again = train(out, teacher, wordnet, "--hours", "0.12", "--parts", "rlg_auto", steps=3)
    assert again.returncode == 0, again.stderr
    curve = json.loads((out / "rlg_auto" / "curve.json").read_text())
    assert [point["step"] for point in curve] == [2, 3]
    shutil.rmtree(out / "univnet")
    begun = train(out, teacher, wordnet, "--hours", "0.12", "--parts", "univnet", "--begin-as", "demo", steps=1)
    assert begun.returncode == 0, begun.stderr
    ours = torch.load(out / "univnet" / "checkpoint.pt", weights_only=True)["module"]
    for key, theirs in ane.load().model.tensors("univnet").items():
        torch.testing.assert_close(ours[key], theirs.float(), atol=1e-3, rtol=0)      # a step away


@pytest.mark.parametrize(("arguments", "told"), [
    (("--steps", "gpt=3"), "write PART=N"), (("--parts", "ears"), "there are texts"),
    (("--wordnet", "/nowhere"), "wordnet-base"),
    (("--begin-as", "/nowhere"), "/nowhere")])
def test_what_cannot_be_trained_is_told_in_one_line(tmp_path, teacher, wordnet, arguments, told):
    result = train(tmp_path / "run", teacher, wordnet, *arguments)
    assert result.returncode == 1
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_earlier_voice_that_does_not_fit_is_told_before_any_work(tmp_path, teacher, wordnet, random_bundle):
    result = train(tmp_path / "run", teacher, wordnet, "--begin-as", random_bundle)
    assert result.returncode == 1
    assert "it must have the voices rms and slt" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_recipe_is_told(tmp_path):
    torch.manual_seed(0)
    Training(tmp_path, torch.nn.Linear(3, 1), Plan(1, 0.1), "cpu").save()
    with pytest.raises(UserError, match="another recipe"):
        Training(tmp_path, torch.nn.Linear(4, 1), Plan(1, 0.1), "cpu")


def test_a_missing_teacher_is_told(tmp_path, wordnet):
    result = train(tmp_path / "run", tmp_path / "nothing", wordnet, "--hours", "0.01", "--parts", "shards")
    assert result.returncode == 1
    assert "install it (Debian: flite)" in result.stderr


def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVED_EVERY", 0.0)

    def train_to(folder, stop=None):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 1)

        def loss(index, generator):
            if index == stop:
                raise KeyboardInterrupt
            x = torch.randn(4, 3, generator=generator)
            return {"loss": ((module(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()}

        Training(tmp_path / folder, module, Plan(steps=8, rate=0.1, warmup=2), "cpu").run(loss)
        return module.state_dict()

    straight = train_to("straight")
    with pytest.raises(KeyboardInterrupt):
        train_to("resumed", stop=5)
    resumed = train_to("resumed")
    assert all(torch.equal(straight[key], resumed[key]) for key in straight)


def test_latents_are_those_of_the_decoder_that_is_there(tmp_path, monkeypatch):
    clip = Clip([3, 4, 5], np.arange(6), 0, Path("shard"), 0)
    monkeypatch.setattr(Work, "held_back_shards", [])
    monkeypatch.setattr(Work, "clips", lambda self, shards: [clip])
    (tmp_path / "autoregressive").mkdir()

    def latents(seed):
        torch.manual_seed(seed)
        work = Work(tmp_path, Recipe(), "cpu", Flite(), tmp_path, 1)
        work.autoregressive = DecoderInTraining(CONFIGS["autoregressive"], 1, 0.7).eval()
        torch.save(work.autoregressive.state_dict(), tmp_path / "autoregressive" / "checkpoint.pt")
        return work.latents[clip.shard, clip.index], work

    first, _ = latents(0)
    second, work = latents(1)       # trained anew in the same folder, to the same step
    [expected] = work.latents_of(work.autoregressive, [clip])
    np.testing.assert_array_equal(second, expected.numpy())
    assert not np.array_equal(first, second)
    work.latents_of = None          # made once
    del work.latents
    np.testing.assert_array_equal(work.latents[clip.shard, clip.index], second)


def test_the_rate_warms_up_and_falls_to_nothing():
    plan = Plan(steps=100, rate=1.0, warmup=10)
    rates = [rate_at(step, plan) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.0, abs=1e-6)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
