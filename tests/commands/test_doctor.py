"""`ane doctor` as a user runs it."""

import json

import pytest

from ane.cli import main
from ane.commands import doctor
from ane.commands.doctor import Finding


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))


def findings(capsys) -> dict[str, dict]:
    status = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["works"] == (status == 0)
    return {finding["subject"]: finding for finding in report["findings"]}


def test_this_machine_can_speak_and_every_gap_has_a_remedy(capsys):
    found = findings(capsys)
    for subject in ("python", "backend torch", "bundle demo", "cache folder", "data folder"):
        assert found[subject]["state"] == "ok"
    assert found.keys() >= {"backend coreml", "backend onnx", "playback", "fastapi", "av", "ray"}
    assert all(finding["fix"] for finding in found.values() if finding["state"] == "missing")


def test_a_missing_optional_package_is_named_with_the_command_that_installs_it(monkeypatch, capsys):
    def missing(package: str) -> str:
        raise doctor.PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", missing)
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "pip install 'tortoise-ane[check]'" in printed
    assert "`ane say` works here." in printed


def test_a_folder_that_cannot_be_written_is_missing_but_not_fatal(monkeypatch, capsys):
    monkeypatch.setenv("ANE_HOME", "/dev/null")
    found = findings(capsys)
    assert found["cache folder"]["state"] == found["data folder"]["state"] == "missing"


def test_the_status_is_1_when_ane_say_cannot_work(monkeypatch, capsys):
    broken = Finding("backend torch", "broken", "no torch", "pip install torch")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [broken],))
    assert main(["doctor"]) == 1
    assert "to fix it: pip install torch" in capsys.readouterr().out


def test_versions_of_onnx_runtime_and_torch_that_do_not_fit_are_shown(monkeypatch, capsys):
    import onnxruntime

    from ane.backends.onnx import providers
    from ane.backends.onnx.providers import GpuVersions

    versions = GpuVersions("1.31.1", "13.0", "2.10.0+cu128", "12.8")
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(providers, "installed_versions", lambda ort: versions)
    found = findings(capsys)
    assert found["backend onnx"]["detail"] == ("onnxruntime 1.31.1 for CUDA 13.0, torch 2.10.0+cu128 for CUDA 12.8, "
                                               "with the providers CUDA, CPU")
    assert found["backend onnx:cuda"]["state"] == "missing"
    assert "install both for the same CUDA" in found["backend onnx:cuda"]["detail"]
    assert "pip install" in found["backend onnx:cuda"]["fix"]
    assert "backend onnx:tensorrt" not in found
