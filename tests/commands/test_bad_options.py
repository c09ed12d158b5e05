"""An option that this machine or the other options do not allow is one clear line."""


import pytest
import torch

from ane.cli import main


def test_no_space_of_gpu_memory(say, monkeypatch):
    """The CUDA allocator's error, raised where it would be: inside a network."""
    from ane.models.vocoders.convnext import SourceFilterNetwork

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(SourceFilterNetwork, "forward", full)
    assert "memory" in say("hello")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device: CUDA_VISIBLE_DEVICES= pytest tests/commands")
def test_device_that_is_not_there(say):
    assert "torch:cpu" in say("hello", "--backend", "torch:cuda")


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
