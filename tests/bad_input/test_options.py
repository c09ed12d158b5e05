"""An option that this machine or the other options do not allow is one clear line."""

import json

import pytest
import torch

from ane.cli import main


def test_no_space_of_gpu_memory(say, monkeypatch):
    """The CUDA allocator's error, raised where it would be: inside a network."""
    from ane.models.tortoise.networks.hifigan import Hifigan

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Hifigan, "forward", full)
    assert "memory" in say("hello")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device: CUDA_VISIBLE_DEVICES= pytest tests/bad_input")
def test_device_that_is_not_there(say):
    assert "torch:cpu" in say("hello", "--backend", "torch:cuda")


def test_more_threads_than_cores(say):
    assert "cores" in say("hello", "--threads", "100000")


@pytest.mark.parametrize("name", ["tensorflow", "torch:", "torch:cpu:x", "torch:cpu:", "torch::", "torch:cpu:0:0"])
def test_unknown_backend(say, name):
    assert "torch" in say("hello", "--backend", name)


@pytest.mark.parametrize("flags", [
    ("--steps", "10"), ("--sampler", "ddim"), ("--guidance", "1"), ("--noise", "0.5"), ("--cvvp-amount", "0.5"),
    ("--no-split", "--split", "100,200")])
def test_a_flag_without_effect_is_refused(say, flags):
    line = say("hello", *flags)
    assert "no effect" in line
    assert any(flag in line for flag in flags if flag.startswith("--"))


@pytest.mark.parametrize("flags", [
    ("--temperature", "0"), ("--top-p", "1.5"), ("--repetition-penalty", "0"), ("--typical-mass", "2"),
    ("--max-codes", "9999"), ("--candidates", "2", "--best", "3"), ("--split", "300,200"),
    ("--candidates", "2", "--cvvp-amount", "2"), ("--temperature", "nan"), ("--preset", "fast", "--guidance", "nan"),
    ("--preset", "fast", "--guidance=-1"), ("--preset", "fast", "--noise", "inf"),
    ("--preset", "fast", "--steps", "5000")])
def test_a_value_out_of_range_is_refused(say, flags):
    line = say("hello", *flags)
    assert any(flag.split("=")[0] in line for flag in flags if flag.startswith("--") and flag != "--preset")


def test_an_immense_number_of_best_candidates_is_refused_at_once(say):
    assert "--best must be from 1 to 10000, got 1000000000000" in say("hello", "--best", "1000000000000")


def test_a_precision_in_which_no_chosen_network_is_stored_is_refused(complain):
    line = complain("convert", "demo", "--to", "coreml", "--networks", "hifigan", "--precision", "fp16,8bit", "-o", "x")
    assert "--precision 8bit has no effect on these networks" in line
    assert "hifigan in fp16" in line


@pytest.mark.parametrize("command", [("plan",), ("verify",), ("say", "hello", "--backend", "mil", "-o", "x.wav")])
def test_a_home_that_is_not_a_folder_is_one_line(complain, monkeypatch, command):
    monkeypatch.setenv("ANE_HOME", "/dev/null")
    assert "set ANE_HOME to a folder that can be written" in complain(*command)


def test_a_home_that_is_not_a_folder_does_not_stop_torch(complain, tmp_path, monkeypatch, capsys):
    from ane.bundles import open_model
    from ane.commands import packages

    monkeypatch.setenv("ANE_HOME", "/dev/null")
    assert main(["say", "hello", "--bundle=demo", "--preset=fastest", "--max-codes", "20", "-o",
                 str(tmp_path / "a.wav")]) == 0
    monkeypatch.setattr(packages, "core_ml_runs", lambda: True)         # as on a Mac, where auto wants packages
    model = open_model("demo")
    assert packages.with_packages(model, "auto", None) is model


@pytest.mark.parametrize("flag", ["--network", "--unit", "--units", "--force-build", "--candidate"])
def test_flags_have_one_spelling_without_abbreviations(flag):
    for command in (["say", "hello"], ["convert", "demo", "--to", "onnx", "-o", "x"], ["verify"]):
        with pytest.raises(SystemExit, match="2"):
            main([*command, flag, "1"])


def test_json_goes_alone_to_standard_output(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    assert main(["say", "hello", "--bundle=demo", "--preset=fastest", "--seed", "1", "--json", "-o",
                 str(tmp_path / "a.wav")]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["files"] == [str(tmp_path / "a.wav")]
    assert err == ""
