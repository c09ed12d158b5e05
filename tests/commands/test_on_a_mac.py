"""Test commands on a simulated Mac, whose Core ML is a stand-in for coremltools' native module."""

# ruff: noqa: F811  fixtures are imported

import json
import math
import re
from pathlib import Path

import pytest
import soundfile
import torch
from rich.console import Console

from ane.audio import playback
from ane.backends import load_backend
from ane.backends.coreml import trial
from ane.backends.coreml.compiled import COMPILED, LOADED, TRIED, CompiledCache
from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.mil import Package
from ane.backends.packaged.selection import fits_in_memory
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.bundles.hashes import FileRecord
from ane.bundles.package_records import PackageRecord
from ane.cli import main, parser
from ane.commands import bench, cache
from ane.commands import packages as packages_of_voices
from ane.commands.placement import NEURAL_ENGINE
from ane.system.files import read_json, write_json
from converters.proof.differences import BATCH
from tests.audio.recording_device import RecordingDevice
from tests.backends.coreml import native
from tests.backends.coreml.mac_fixtures import M2, mac, packages, unguarded_mac  # noqa: F401
from tests.backends.coreml.orders import Order
from tests.random_model import write_random_bundle
from tests.small_bundle import write_small_bundle

SPEECH = ("--preset=fastest", "--seed", "0", "--lanes", "2", "--max-codes", "20")
SAY = ("say", "Hi.", *SPEECH, "-o", "hi.wav", "--bundle")
CONVERT = ("convert", "--to", "coreml", "--networks", "hifigan", "--buckets", "hifigan=14", "-o")
PREWARM = ("cache", "prewarm", "--bundle")
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """With packages of all networks that ``write_small_bundle`` converts."""
    return write_small_bundle(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A bundle with packages of CLVP, of the encoders, and of the vocoder of the preset "fastest"."""
    return write_small_bundle(tmp_path_factory.mktemp("bundles"), ["clvp", "rlg_auto", "hifigan"])


def test_it_speaks_streams_and_lists_what_it_compiled(mac, small, monkeypatch, succeed):
    messages = succeed(*SAY, small)
    assert re.search(
        "Core ML has up to 1 function to compile and load for the first time: about 10 s, at 10.0 s per function, "
        f"an estimate. To do this ahead of time, run `ane cache prewarm --bundle {small}`.*"
        "Compiling hifigan-fp16 for Apple M2, once",
        messages,
        re.DOTALL,
    )
    assert "Loading hifigan_14" in messages
    assert soundfile.read("hi.wav")[0].any()
    device, children = RecordingDevice(), []
    monkeypatch.setattr(playback, "open_device", device)
    monkeypatch.setattr(
        playback,
        "PlayerProcess",
        lambda *arguments: children.append(arguments) or playback.Player(device(arguments[0]), *arguments),
    )
    assert "for the first time" not in succeed("say", "Hi.", "--bundle", small, *SPEECH, "--stream"), "only once"
    assert device.played.any()
    assert len(children) == 1, "coremltools holds this process"
    assert "compiled models" in succeed("cache", "list")


@pytest.mark.parametrize(
    "before",
    [("verify", "--against", "coreml"), ("say", "Hi.", *SPEECH, "-o", "hi.wav", "--compute-units", "CPU_ONLY")],
)
def test_first_loads_are_announced_after_a_verification_and_a_load_on_other_units(mac, small, before, succeed):
    succeed(*before, "--bundle", small)
    printed = succeed(*SAY, small)
    assert "up to 1 function to compile" in printed
    assert "Loading hifigan_14" in printed


@pytest.mark.parametrize("version", ["14.7", "15.5", "26.4", "27.0"])
@pytest.mark.parametrize("flags", [("Hello",), ("Hello", "--bundle", "demo", "--preset=fastest", "--max-codes", "8")])
def test_the_embedded_voices_speak_at_once_on_the_cpu(mac, monkeypatch, capsys, version, flags):
    """Without a conversion, Core ML or MPS, which do not make models of this size faster."""
    native.write_system(mac.folder, version)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr(packages_of_voices, "cached_packages", lambda *_: pytest.fail("it converts"))
    assert main(["say", *flags, "--json", "-o", "a.wav"]) == 0
    printed = capsys.readouterr()
    assert re.match("(onnx|torch):cpu", json.loads(printed.out)["backend"])
    assert not re.search("Core ML|MPS|Loading|onver", printed.err)
    assert mac.log == []
    assert soundfile.read("a.wav")[0].any()


def test_on_torch_this_process_plays_on_a_device_that_is_opened_once(mac, monkeypatch):
    device = RecordingDevice()
    monkeypatch.setattr(playback, "open_device", device)
    monkeypatch.setattr(playback, "PlayerProcess", lambda *_: pytest.fail("a child plays"))
    assert main(["say", "Hi.", "--stream"]) == 0
    assert device.played.any()
    assert device.opened == 1


def test_the_embedded_voices_use_core_ml_and_mps_where_they_are_named(mac, small, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr(packages_of_voices, "cached_packages", lambda *_: Bundle(small))
    model = open_model()
    assert packages_of_voices.with_packages(model, "coreml", Console()).packages
    assert packages_of_voices.with_packages(model, "auto", Console()) is model
    assert load_backend("torch:mps", model).device == torch.device("mps")
    assert load_backend("torch", model).device == torch.device("cpu")
    write_random_bundle(small.parent / "large")
    large = load_backend("auto", open_model(small.parent / "large"))
    assert (large.decoding.device, large.fallback.device) == (torch.device("cpu"), torch.device("mps"))


def test_bench_also_measures_an_embedded_voice_on_core_ml(mac, small, monkeypatch):
    monkeypatch.setattr(packages_of_voices, "cached_packages", lambda *_: Bundle(small))
    run = bench.prepare(parser().parse_args(["bench"]), Console(stderr=True))
    assert {spec: bool(model.packages) for spec, model in run.models.items()} == {
        "coreml": True,
        "onnx:cpu": False,
        "torch:cpu": False,
    }


def test_a_refusal_is_a_line_and_the_speech_goes_on(mac, small, succeed):
    mac.order(Order("load", units="CPU_AND_NE", message="ANECCompile() FAILED"))
    [line] = [line for line in succeed(*SAY, small).splitlines() if "instead" in line]
    assert line.endswith("the Neural Engine's compiler rejects it. Running hifigan_14_14 on CPU_AND_GPU instead.")


def test_every_function_is_planned_and_verified(mac, small, succeed):
    def planned() -> list[dict]:
        lines = succeed("plan", "--bundle", small, "--chip", "M1", "--json", "-").splitlines()
        return json.loads(next(line for line in lines if line.startswith("{")))["functions"]

    succeed("verify", "--bundle", small, "--against", "coreml", "--networks", "rlg_auto")
    functions = planned()
    assert len(functions) > 3
    assert all(
        set(one["placement"]["ops"]) <= {NEURAL_ENGINE, "CPU"} and not one["placement"]["unknown"] for one in functions
    )
    assert mac.count("plan ") == len(functions)
    assert planned() == functions
    assert mac.count("plan ") == len(functions), "a plan is remembered"


def test_verification_announces_first_loads_and_tries_each_before(mac, small, capsys):
    mac.order(Order("load", function="clvp_text_32", message="error code: -14"))
    for announced in (1, 0):
        assert main(["verify", "--bundle", str(small), "--against", "coreml", "--networks", "clvp"]) == 1
        printed = capsys.readouterr().err
        assert printed.count("Loading clvp_speech_32 on the Neural Engine for the first time") == announced
        assert "1 of 2 functions failed: clvp-fp16, clvp_text_32: Core ML cannot load" in printed
        assert "cannot run it (error code -14)" in printed
    assert mac.count("load clvp_text_32") == 1  # the result of the first load is remembered
    # the first time it is tried and loaded, the second time only loaded
    assert mac.count("load clvp_speech_32") == 2 + 1
    assert mac.count("compile") == 1


def record(precision: str, size: int) -> PackageRecord:
    return PackageRecord("diffusion", precision, "packages/x.mlpackage", [FileRecord("x", "0" * 64, size)], {})


@pytest.mark.parametrize(("installed", "fits"), [(8e9, False), (32e9, True)])
def test_functions_stay_loaded_only_where_the_memory_is_large_enough(installed, fits):
    """A decoder of 800 MB and a denoiser of 500 MB, four functions each."""
    packages = {"autoregressive": record("fp16", 800_000_000), "diffusion": record("fp16", 500_000_000)}
    assert fits_in_memory(packages, installed) == fits


def test_prewarm_loads_every_function_once_and_goes_on_after_an_interruption(mac, small, succeed):
    assert "an estimate" in succeed(*PREWARM, small, "--dry-run")
    assert mac.log == [], "nothing is compiled by a dry run"
    mac.order(Order("load", function="clvp_text_32", message="error code: -14"))
    count = sum(len(package.functions) for package in Bundle(small).packages)
    for _ in range(2):
        assert succeed(*PREWARM, small).count(f"{count - 1} of {count} functions are ready") == 1
    assert mac.count("compile ") == len(Bundle(small).packages)
    assert mac.count("predict ") == count - 1, "each is tried once"
    mac.order()
    assert "Compiling" not in succeed(*SAY, small)


def test_prewarm_loads_a_refused_function_where_it_falls_to_and_measures(mac, small, succeed):
    mac.order(Order("load", function="clvp_text_32", units="CPU_AND_NE", message="error code: -14"))
    printed = succeed(*PREWARM, small)
    assert "Running clvp_text_32 on CPU_AND_GPU instead." in printed
    assert "4 of 4 functions are ready" in printed
    assert mac.count("predict clvp_text_32 CPU_AND_GPU") == 1
    printed = succeed(*PREWARM, small, "--dry-run")
    assert re.search(r"at [\d.]+ s per function, as first loads of this model took on this machine", printed)


def test_after_an_update_of_macos_torch_speaks_and_the_command_that_compiles_again_is_named(
    mac, small, succeed, capsys
):
    def backend(*flags: str) -> str:
        capsys.readouterr()
        assert main([*SAY, str(small), "--json", *flags]) == 0
        out, err = capsys.readouterr()
        said.append(err)
        return json.loads(out)["backend"].split()[0]

    said: list[str] = []
    succeed(*PREWARM, small)
    assert backend() == "coreml"
    native.write_system(mac.folder, "15.6", build="24G84")
    before = len(mac.log)
    assert backend() == "torch:cpu"
    assert re.search(
        "macOS was updated since Core ML compiled this bundle, so this runs on torch. To compile it again, "
        f"run `ane cache prewarm --bundle {small}`: about ",
        said[-1],
    )
    assert len(mac.log) == before, "nothing is compiled or loaded"
    succeed(*PREWARM, small)
    assert backend() == "coreml"
    native.write_system(mac.folder, "15.7", build="24G99")
    assert backend("--backend", "coreml") == "coreml", "who names an engine gets it"


def test_a_book_keeps_the_engine_that_it_began_with(mac, small, succeed):
    Path("book.txt").write_text("Hi.\n\nThere.\n")
    succeed(*PREWARM, small)
    for flags in (("--backend", "torch:cpu"), ("--redo", "1")):
        printed = succeed("read", "book.txt", "--bundle", small, *SPEECH, "-o", "book.wav", *flags)
        assert printed.count("; torch:cpu") == 1, "the report names the engine"
        assert "coreml" not in printed


@pytest.mark.parametrize("flags", [(), ("--no-prewarm",)])
def test_a_conversion_ends_with_the_first_loads_so_that_no_speech_waits_for_them(mac, small, succeed, flags):
    printed = succeed(*CONVERT, "./new", small, *flags)
    functions = sum(len(package.functions) for package in Bundle("new").packages)
    assert (f"{functions} of {functions} functions are ready" in printed) == (not flags)
    assert ("for the first time" in succeed(*SAY, "./new")) == bool(flags)


def test_an_interrupted_first_load_leaves_the_bundle_and_continues(mac, small, tmp_path, capsys, monkeypatch, succeed):
    def interrupted(self, *_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CoreMLRuntime, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            main([*CONVERT, str(tmp_path / "new"), str(small)])
    command = f"ane cache prewarm --bundle {tmp_path / 'new'}"
    assert f"The bundle is complete. `{command}` continues" in capsys.readouterr().err
    assert "4 of 4 functions are ready" in succeed(*command.split()[1:])


def test_the_estimate_includes_compiling_and_names_other_models(mac, packages):
    tried, own, other = CompiledCache(), packages / "two.mlpackage", packages / "three.mlpackage"
    assert tried.load_estimate(12, [own], M2) == "about 2.0 minutes, at 10.0 s per function, an estimate"
    CoreMLRuntime(trial=trial.CoreMLTrial()).load(own, "main", "CPU_ONLY")
    [entry] = tried.entries()
    content = read_json(entry / TRIED)
    assert float(content[COMPILED]) > 0
    write_json(entry / TRIED, content | {COMPILED: "3", f"main CPU_ONLY{LOADED}": "2"})
    assert tried.load_estimate(2, [own], M2) == (
        "about 10 s, at 5.0 s per function, as first loads of this model took on this machine"
    )
    assert tried.load_estimate(2, [other], M2) == (
        "about 10 s, at 5.0 s per function, as first loads of other models took on this machine"
    )


def test_prewarm_without_a_bundle_loads_that_of_the_default_voice(mac, small, monkeypatch):
    opened = []
    monkeypatch.setattr(cache, "with_packages", lambda model, *_: opened.append(model.name) or Bundle(small))
    assert main(["cache", "prewarm", "--dry-run"]) == 0
    assert opened == ["heart"]


def test_core_ml_is_asked_to_compile_what_the_documentation_states(mac, whole, capsys, monkeypatch):
    """The table of docs/core-ml.md, row for row: each command, and the same again."""
    table = [line for line in (DOCS / "core-ml.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    bundle, verify = Bundle(whole), ("verify", "--against", "coreml")
    functions = [(package, name) for package in bundle.packages for name in package.functions]
    assert (len(bundle.packages), len(functions)) == (6, 10)

    def compiled(*command: str, status: int = 0) -> tuple[int, str]:
        """How many models a command lets Core ML compile, and their size."""
        before, written = mac.count("compile "), mac.written
        assert main([*command, "--bundle", str(whole)]) == status
        return mac.count("compile ") - before, f"{(mac.written - written) / 1e6:.1f} MB"

    def stated(start: str, *command: str) -> str:
        """What the table states of a command that was given, after it was given again."""
        [(first, again)] = [line.strip("| ").split(" | ")[1:] for line in table if line.startswith(f"| {start} |")]
        assert compiled(*command)[0] == int(again)
        return first

    count, size = compiled("cache", "prewarm")
    assert stated("`ane cache prewarm`", "cache", "prewarm") == f"{count}: one per package, {size}"
    count, _ = compiled(*verify)
    assert stated("`ane verify --against coreml`, after `ane cache prewarm`", *verify) == str(count)
    count, _ = compiled(*verify, "--layers")
    programs = [Package(whole / package.path).function(name) for package, name in functions]
    values = [sum(len(op.outputs) for op in program.ops) for program in programs if not program.states]
    compilations = sum(-(-number // BATCH) for number in values)
    assert stated("`ane verify --against coreml --layers`, if all functions are right", *verify, "--layers") == (
        f"{count}. If the command had to look into every function without a state, {compilations}, "
        f"because a compilation checks {BATCH} values"
    )
    count, size = compiled("plan", "--chip", "M1")
    assert stated("`ane plan`", "plan", "--chip", "M1").startswith(f"{count}: one per function, {size}; ")
    # one function gives wrong values after one of its operations
    monkeypatch.setattr(native._MLModelProxy, "predict", wrong_from("res_stack__1"))
    for _ in range(2):
        count, _ = compiled(*verify, "--layers", "--function", "univnet_14_17", status=1)
        assert count == math.ceil(math.log(max(values), BATCH)) == 2
    assert "starting at the operation" in capsys.readouterr().err


def wrong_from(start: str, predict=native._MLModelProxy.predict):
    """``predict`` of the stand-in's models, whose values are negated from the first whose name starts so."""

    def spoiled(self, features, state):
        order = [name for op in self.interpreter.function.ops for name in op.outputs]
        first = next((index for index, name in enumerate(order) if name.startswith(start)), len(order))
        return {
            name: -array if name in order[first:] else array for name, array in predict(self, features, state).items()
        }

    return spoiled
