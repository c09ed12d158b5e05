"""Settings that `ane bench` remembers: which model and machine they apply to, and what overrides them."""

# ruff: noqa: F811  fixtures are imported

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from ane.backends import load_backend, tuning
from ane.backends.tuning import LaterFormatError, Tuning
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import FileRecord
from ane.bundles.packages import FunctionRecord, PackageRecord
from ane.commands.backend_options import load_synthesizer
from ane.system.errors import UserError
from ane.system.machine import processor_name, system_version, usable_cores
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401

HERE = ("Apple M2", "24F74")
describe_machine = tuning.machine_key.__wrapped__       # without its cache, and before a fixture replaces it
FAST = Tuning("torch:cpu", "fp32", lanes=3, threads=1, measured={"real_time_factor": 0.5})
COMPUTE_UNITS = {"autoregressive": "CPU_AND_NE", "univnet": "CPU_AND_GPU"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tuning, "machine_key", lambda: HERE)
    return tmp_path / "home"


@pytest.fixture
def model(random_bundle) -> Bundle:
    return Bundle(random_bundle)


@pytest.fixture
def packaged(random_bundle) -> Bundle:
    """The model with the record of a package that does not exist."""
    model = Bundle(random_bundle)
    files = [FileRecord("packages/autoregressive-fp16.mlpackage/Manifest.json", "0" * 64, 1)]
    model.packages = [PackageRecord("autoregressive", "fp16", "packages/autoregressive-fp16.mlpackage", files,
                                    {"step_1_64": FunctionRecord("step", {"columns": 1, "slots": 64}, {})})]
    return model


@pytest.fixture
def threads():
    """Restores torch's number of threads, which is one for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def write_tuning(home: Path, content: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / tuning.TUNING_FILE).write_text(content, encoding="utf-8")
    return home / tuning.TUNING_FILE


def test_a_remembered_tuning_applies_to_its_model_on_its_machine_only(model, packaged, monkeypatch):
    assert tuning.find_tuning(model) is None
    entry = tuning.store_tuning(model, FAST)
    assert (entry.model, entry.chip, entry.os_build) == ("random", *HERE)
    assert tuning.find_tuning(model) == FAST
    assert tuning.find_tuning(packaged) is None          # its packages make it another model
    for elsewhere in (("Apple M2", "25A354"), ("Apple M4", "24F74")):
        monkeypatch.setattr(tuning, "machine_key", lambda elsewhere=elsewhere: elsewhere)
        assert tuning.find_tuning(model) is None


def test_a_second_tuning_replaces_the_first_and_leaves_those_of_other_models(model, packaged):
    tuning.store_tuning(packaged, Tuning("coreml", compute_units=COMPUTE_UNITS))
    for tuned in (FAST, dataclasses.replace(FAST, lanes=4)):
        tuning.store_tuning(model, tuned)
    assert [entry.tuning.lanes for entry in tuning.entries()] == [None, 4]
    assert tuning.find_tuning(packaged).compute_units == COMPUTE_UNITS


def test_forgetting_deletes_the_file(model, home):
    assert tuning.delete_tunings() == 0
    tuning.store_tuning(model, FAST)
    assert tuning.delete_tunings() == 1
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("content", [
    "", "{", "[]", "{}", '{"format": "1"}', '{"format": 1}', '{"format": 1, "tunings": [{}]}',
    '{"format": 1, "tunings": [{"model_key": "a", "model": "b", "chip": "c", "os_build": "d", '
    '"tuning": {"backend": 1}}]}',
    '{"format": 1, "tunings": [{"model_key": "a", "model": "b", "chip": "c", "os_build": "d", "tuning": {"x": 1}}]}',
    '{"format": 1, "tunings": [{"model_key": "a", "model": "b", "chip": "c", "os_build": "d", '
    '"tuning": {"backend": "torch", "threads": 0}}]}',
    '{"format": 1, "tunings": [{"model_key": "a", "model": "b", "chip": "c", "os_build": "d", '
    '"tuning": {"backend": "coreml", "compute_units": {"clvp": "NPU"}}}]}'])
def test_a_damaged_file_causes_one_notice_and_stops_nothing(model, home, content):
    write_tuning(home, content)
    with pytest.raises(UserError, match=r"ane bench") as caught:
        tuning.entries()
    notices = []
    assert tuning.find_tuning(model, notices.append) is None
    line, = notices
    assert str(caught.value) in line
    assert "\n" not in line
    load_backend("auto", model, notice=notices.append)
    assert len(notices) == 2
    tuning.store_tuning(model, FAST)
    assert tuning.find_tuning(model) == FAST
    write_tuning(home, content)
    assert tuning.delete_tunings() == 1


def test_a_file_of_a_later_version_causes_a_notice_and_is_kept(model, home):
    file = write_tuning(home, json.dumps({"format": 2, "tunings": "unheard of"}))
    notices = []
    assert tuning.find_tuning(model, notices.append) is None
    assert "update tortoise-ane" in notices[0]
    with pytest.raises(LaterFormatError, match="--forget"):
        tuning.store_tuning(model, FAST)
    assert json.loads(file.read_text())["format"] == 2


def test_auto_uses_the_remembered_tuning_and_arguments_override_it(model, threads):
    default = load_backend("auto", model)
    tuning.store_tuning(model, dataclasses.replace(FAST, precision="bf16"))
    tuned = load_backend("auto", model)
    assert (tuned.chosen.name, torch.get_num_threads()) == ("bf16", 1)
    assert load_backend("auto", model, "fp32").chosen.name == "fp32"
    load_backend("auto", model, threads=2)
    assert torch.get_num_threads() == 2
    assert load_backend("torch", model).chosen == default.chosen       # a named backend ignores the tuning


def test_arguments_for_another_backend_disable_the_tuning(model):
    tuning.store_tuning(model, FAST)
    for flags in ({"cache": "io"}, {"compute_units": "CPU_ONLY"}):
        with pytest.raises(UserError, match="no effect"):
            load_backend("auto", model, **flags)
    with pytest.raises(UserError, match="8bit"):
        load_backend("auto", model, "8bit")


def test_compute_units_and_cache_of_a_tuning_reach_core_ml(packaged, mac):
    tuning.store_tuning(packaged, Tuning("coreml", "fp16", COMPUTE_UNITS, "state", lanes=8))
    backend = load_backend("auto", packaged)
    assert (backend.runtime.name, backend.cache, backend._compute_units) == ("coreml", "state", COMPUTE_UNITS)
    backend = load_backend("auto", packaged, cache="io", compute_units="CPU_ONLY")
    assert (backend.cache, set(backend._compute_units.values())) == ("io", {"CPU_ONLY"})


def test_a_notice_reaches_core_ml(packaged, mac):
    notices = []
    load_backend("coreml", packaged, notice=notices.append).runtime.notice("Compiling")
    assert notices == ["Compiling"]


def test_say_uses_the_remembered_number_of_lanes(model, threads):
    from rich.console import Console

    from ane.cli import parser
    from ane.models.tortoise.settings import Settings

    for flags, is_remembered, lanes in (([], False, 16), ([], True, 3), (["--lanes", "5"], True, 5),
                                     (["--backend", "torch"], True, 16)):
        tuning.store_tuning(model, FAST) if is_remembered else tuning.delete_tunings()
        args = parser().parse_args(["say", "hello", *flags])
        settings = Settings.of(candidates=16, lanes=args.lanes or Settings.of().lanes)
        assert load_synthesizer(args, model, settings, Console(stderr=True))[1].lanes == lanes


def test_core_ml_off_macos_is_refused_before_anything_is_converted(monkeypatch):
    from ane.cli import main
    from converters import conversion

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(conversion, "convert", lambda *_, **__: pytest.fail("convert was called"))
    assert main(["say", "hello", "--backend", "coreml", "-o", "a.wav"]) == 1


def test_a_machine_is_described_by_its_chip_cores_and_system(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    chip, system = describe_machine()
    assert chip.startswith(f"{processor_name()}, {usable_cores()} cores")
    assert system == system_version() != ""
