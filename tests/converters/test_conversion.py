"""`ane convert`: a model becomes packages that say the same, whole or not at all, and goes on where it was stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.bundles.packages import PackageRecord
from ane.models.tortoise.result import Speech
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.synthesizer import Synthesizer
from ane.system.errors import UserError
from converters import conversion
from converters.conversion import convert
from converters.coreml.package import Options
from converters.proof.accepted_warnings import STRICT, refused, remaining
from converters.proof.parity import MATHS, ROUNDING

SENTENCE = "The turtle was first, after all."
SMALL = Options(lanes=(2,), caches=("io",), buckets={"prefill": (32,), "step": (128,)})
NETWORKS = ["rlg_auto", "autoregressive"]


def size(bundle: Bundle, package: PackageRecord) -> int:
    return sum(file.bytes for file in package.files)


def speak(bundle: Bundle, backend: str, preset: str, **options) -> Speech:
    settings = Settings.of(preset, bundle.settings, candidates=1 if preset == "fastest" else 3)
    return Synthesizer(bundle, load_backend(backend, bundle, threads=1, **options)).speak(
        SENTENCE, seed=1, settings=settings)


def decibels(wanted: np.ndarray, got: np.ndarray) -> float:
    return 10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum())


# What is measured

def test_every_function_of_an_fp16_bundle_is_near_the_float32_networks(fp16_bundle):
    for package in fp16_bundle.packages:
        for name, function in package.functions.items():
            if package.precision == "fp32":             # UnivNet
                assert function.parity[MATHS] >= 100, name
                continue
            assert function.parity[MATHS] >= 60, name
            # a trained HiFi-GAN loses more: rounded latents and slopes alone leave it 56 dB
            assert function.parity[ROUNDING] >= (45 if package.network == "hifigan" else 53), name


def test_every_function_of_an_fp32_bundle_is_the_same_network(fp32_bundle):
    for package in fp32_bundle.packages:
        for name, function in package.functions.items():
            # a sampling run adds up what three guided steps part by
            assert function.parity[MATHS] >= (90 if function.kind == "sample" else 100), name


def test_every_network_that_speaks_is_converted(fp16_bundle):
    assert {package.network for package in fp16_bundle.packages} == fp16_bundle.networks


def test_the_embedded_decoder_holds_its_bar_in_8_bits(tmp_path):
    options = Options("8bit", caches=("io",), buckets={"prefill": (64,)})       # it loses most at 16 lanes
    package, = convert(open_model(), tmp_path / "out", [options], ["autoregressive"]).packages
    kept = {name: function.parity[MATHS] for name, function in package.functions.items()}
    assert min(kept["prefill_64"], kept["step_1_448"]) >= 34
    assert min(kept.values()) >= 33.5


@pytest.mark.parametrize(("precision", "bar"), [("8bit", 35), ("6bit", 20), ("4bit", 8)])
def test_compressed_weights_are_smaller_and_measured(source, tmp_path, precision, bar):
    options = [Options(name, SMALL.heads, SMALL.wide, SMALL.lanes, SMALL.caches, SMALL.buckets)
               for name in ("fp16", precision)]
    bundle = convert(source, tmp_path / "out", options, ["autoregressive"])
    full, small = bundle.packages
    assert small.precision == precision
    assert size(bundle, small) < 0.8 * size(bundle, full)
    assert all(bar <= function.parity[MATHS] < 60 for function in small.functions.values())


# What is said

@pytest.mark.parametrize("preset", ["fastest", "ultra_fast"])
def test_fp32_packages_say_what_torch_says(fp32_bundle, preset):
    wanted, got = (speak(fp32_bundle, backend, preset) for backend in ("torch:cpu", "mil"))
    assert (got.codes, got.chunks) == (wanted.codes, wanted.chunks)
    assert decibels(wanted.audio, got.audio) >= 80


@pytest.mark.parametrize(("options", "bar"), [({"cache": "io"}, 50), ({"cache": "state"}, 50)])
def test_fp16_packages_say_it_within_fp16(fp16_bundle, options, bar):
    wanted, got = speak(fp16_bundle, "torch:cpu", "fastest"), speak(fp16_bundle, "mil", "fastest", **options)
    assert decibels(wanted.audio, got.audio) >= bar


def test_what_speaks_from_packages_is_the_program_itself(fp32_bundle, tmp_path):
    said = subprocess.run([sys.executable, "-m", "ane.cli", "say", SENTENCE, "--bundle", str(fp32_bundle.path),
                           "--backend", "mil", "--preset", "fastest", "-o", str(tmp_path / "said.wav"), "--json"],
                          capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["backend"] == "mil fp32"
    assert (tmp_path / "said.wav").stat().st_size > 40_000


def test_a_network_without_a_package_stays_on_torch(source, tmp_path):
    bundle = convert(source, tmp_path / "out", [SMALL], ["rlg_auto"])
    backend = load_backend("mil", bundle, threads=1)
    noise = np.ones((1, 64), np.float32)
    assert decibels(load_backend("torch", bundle).run("ar_random", noise=noise),
                    backend.run("ar_random", noise=noise)) >= 60
    assert backend.run("diffusion_random", noise=noise).shape == (1, 64)


# What is written

def test_a_package_holds_the_weights_of_its_functions_once(source, tmp_path):
    one = convert(source, tmp_path / "one", [SMALL], ["autoregressive"])
    many = convert(source, tmp_path / "many",
                   [Options(lanes=(1, 2, 4), caches=("io", "state"), buckets={"prefill": (32, 64), "step": (128,)})],
                   ["autoregressive"])
    weights = [next(file.bytes for file in bundle.packages[0].files if file.file.endswith("weight.bin"))
               for bundle in (one, many)]
    assert (len(one.packages[0].functions), len(many.packages[0].functions)) == (2, 9)
    assert weights[1] == weights[0]


def test_graphs_of_the_decoder_and_the_denoiser_break_no_rule_of_the_engine(fp16_bundle):
    for package in fp16_bundle.packages:
        if package.network in STRICT:
            assert not refused(fp16_bundle.path / package.path)


def test_what_the_lint_still_says_stands_in_the_bundle_with_its_reason(fp16_bundle):
    for package in fp16_bundle.packages:
        assert package.warnings == remaining(fp16_bundle.path / package.path)
        assert not [entry for entry in package.warnings if entry["stays"] == "not looked at yet"], package.network


def test_a_package_tells_where_it_comes_from(fp16_bundle):
    from ane.backends.mil import Package

    package = next(package for package in fp16_bundle.packages if package.network == "autoregressive")
    metadata = Package(fp16_bundle.path / package.path).metadata
    assert json.loads(metadata["source"])["weights_sha256"] == (
        fp16_bundle.manifest.networks["autoregressive"].weights.sha256)
    assert json.loads(metadata["functions"])["step_8_2304"]["bucket"] == {"columns": 8, "slots": 2304}
    assert metadata["layout"] == "(batch, channels, 1, sequence)"


def test_the_bundle_is_a_whole_bundle(fp16_bundle):
    fp16_bundle.verify()
    assert sorted(path.stem for path in fp16_bundle.voices.iterdir()) == ["rms", "slt"]
    assert fp16_bundle.settings == open_model().settings


# What goes wrong

def test_a_conversion_that_was_killed_goes_on_where_it_was(source, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "ane.cli", "convert", str(source.path), "--to", "coreml", "-o", str(out),
               "--networks", "conditioning_encoder,rlg_auto,autoregressive", "--lanes", "2", "--buckets", "prefill=32",
               "--cache", "io"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = tmp_path / "out.converting" / "packages" / "autoregressive-fp16.mlpackage"
    noted = tmp_path / "out.converting" / "progress.json"
    deadline = time.monotonic() + 120
    while not (noted.is_file() and json.loads(noted.read_text())["coreml"]["packages"]):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    made = first.stat().st_mtime_ns
    subprocess.run(command, check=True, capture_output=True)
    bundle = Bundle(out)
    assert len(bundle.packages) == 3
    assert (out / bundle.packages[0].path).stat().st_mtime_ns == made
    assert not first.exists()


def test_other_options_do_not_go_on_with_what_was_begun(source, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "write_bundle", stopped)
        with pytest.raises(KeyboardInterrupt):
            convert(source, tmp_path / "out", [SMALL], ["rlg_auto"])
    with pytest.raises(UserError, match=r"out\.converting holds a conversion .* --force"):
        convert(source, tmp_path / "out", [Options("fp32")], ["rlg_auto"])
    assert convert(source, tmp_path / "out", [Options("fp32")], ["rlg_auto"], overwrite=True).packages


def test_other_networks_do_not_go_on_with_what_was_begun(source, tmp_path, monkeypatch):
    stop(monkeypatch, source, tmp_path / "out", ["rlg_auto"])
    with pytest.raises(UserError, match="of other networks"):
        convert(source, tmp_path / "out", [SMALL], ["rlg_diffuser"])


def test_a_package_that_was_damaged_meanwhile_is_made_again(source, tmp_path, monkeypatch):
    stop(monkeypatch, source, tmp_path / "out", ["rlg_auto"])
    weights = next((tmp_path / "out.converting").rglob("weight.bin"))
    weights.write_bytes(weights.read_bytes()[:-64])
    convert(source, tmp_path / "out", [SMALL], ["rlg_auto"]).verify()


def stop(monkeypatch, source: Bundle, out: Path, networks: list[str]) -> None:
    """A conversion that is interrupted when all its packages are made."""
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "write_bundle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(source, out, [SMALL], networks)


def test_packages_that_are_not_made_anew_come_along(source, tmp_path):
    first = convert(source, tmp_path / "out", [SMALL], ["rlg_auto"])
    both = convert(first, tmp_path / "out", [SMALL], ["rlg_diffuser"], overwrite=True)
    assert [package.network for package in both.packages] == ["rlg_diffuser", "rlg_auto"]
    both.verify()


def test_one_process_at_a_time_converts_to_a_place(source, tmp_path):
    with conversion._alone(tmp_path / "out"), pytest.raises(UserError, match="another process is converting to"):
        convert(source, tmp_path / "out", [SMALL], ["rlg_auto"])
    assert convert(source, tmp_path / "out", [SMALL], ["rlg_auto"]).packages


def test_a_bundle_is_written_into_the_folder_one_is_in(source, tmp_path):
    (tmp_path / "here").mkdir()
    said = subprocess.run([sys.executable, "-m", "ane.cli", "convert", str(source.path), "--to", "coreml", "-o", ".",
                           "--networks", "rlg_auto"], cwd=tmp_path / "here", capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(Path(conversion.__file__).parents[1])})
    assert "Wrote" in said.stdout
    assert Bundle(tmp_path / "here").packages


def test_a_graph_that_the_engine_refuses_is_not_published(source, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "refused", lambda path: ["gather: gather x: y"])
    with pytest.raises(UserError, match="what the Neural Engine refuses, gather"):
        convert(source, tmp_path / "out", [SMALL], ["autoregressive"])


def test_a_package_below_its_bar_is_not_published(source, tmp_path, monkeypatch):
    monkeypatch.setitem(conversion.measured.__globals__["BARS"], "fp16", (99.0, 99.0))
    with pytest.raises(UserError, match=r"rlg_auto, function ar_random, in fp16 .* at least 99"):
        convert(source, tmp_path / "out", [SMALL], ["rlg_auto"])
    assert not (tmp_path / "out").exists()


def test_too_little_room_is_told_before_any_work(source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"needs about .* GB .* are\s+free"):
        convert(source, tmp_path / "out", [SMALL])
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_is_told_and_nothing_is_half_written(source, tmp_path):
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); " \
              "from ane.cli import main; sys.exit(main(sys.argv[1:]))"
    said = subprocess.run([sys.executable, "-c", limited, "convert", str(source.path), "--to", "coreml", "-o",
                           str(tmp_path / "out"), "--networks", "autoregressive", "--lanes", "2"],
                          capture_output=True, text=True)
    assert said.returncode == 1
    assert "is the disk full?" in " ".join(said.stderr.split())
    assert "Traceback" not in said.stderr
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "out.converting").rglob("*.mlpackage"))


def test_windows_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion.sys, "platform", "win32")
    with pytest.raises(UserError, match="macOS and Linux"):
        convert(source, tmp_path / "out", [SMALL])


@pytest.mark.parametrize(("arguments", "line"), [
    (["--precision", "int3"], "it is fp16 or fp32"),
    (["--precision", ","], "--precision names nothing"),
    (["--buckets", "prefill"], "give KIND=N"),
    (["--buckets", "prefill=4"], "prefill=4: at least 16"),
    (["--buckets", "prefill=9999"], "this model has 1024 positions"),
    (["--buckets", "denoise=99999", "--networks", "diffusion"], "no axis above 16384"),
    (["--lanes", "1000"], "use fewer --lanes"),
    (["--networks", ","], "--stages names no network"),
    (["--buckets", "prefil=32"], "no such kind; there are prefill"),
    (["--buckets", "prefill=many"], "many is not numbers"),
    (["--lanes", "0"], "must be positive"),
    (["--cache", "disk"], "it is io or state"),
    (["--wide", "all"], "it is norm or softmax"),
    (["--networks", "vocoder"], "no such network; there are"),
])
def test_options_that_are_none_are_told(source, tmp_path, arguments, line):
    said = subprocess.run([sys.executable, "-m", "ane.cli", "convert", str(source.path), "--to", "coreml", "-o",
                           str(tmp_path / "out"), *arguments], capture_output=True, text=True)
    assert said.returncode in (1, 2)
    assert line in " ".join(said.stderr.split())
    assert not list(tmp_path.glob("out*"))
