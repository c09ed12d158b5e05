"""Test `ane convert`: packages speak as the networks do, appear all at once, and resume after an interruption."""

import json
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from ane.audio.mel import diffusion_mel
from ane.backends import load_backend
from ane.backends.mil import Package
from ane.backends.packaged.golden import FILE as PROBES
from ane.bundles import open_model
from ane.bundles.bundle import Bundle
from ane.bundles.package_records import PackageRecord
from ane.cli import main
from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.speech.stream import Speech
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.system.staging import StagingFolder
from converters import conversion
from converters.conversion import convert
from converters.coreml.coreml_package import CoreMLOptions, write_package
from converters.coreml.merge import merged_functions
from converters.function_table import THRESHOLDS, functions_of
from converters.proof.lint import REFUSED, RULES, STRICT, BrokenRule, LintRule, Violation, lint
from converters.proof.parity import MATHS, ROUNDING
from tests import small_bundle
from tests.conversions import converted
from tests.converters.conftest import SPEAKING
from tests.preloaded import ForkedCommand
from tests.refusals import assert_refused

SENTENCE = "The turtle was first, after all."
# dB that the embedded voice reaches in fp16 with rounding. A trained HiFi-GAN loses more than the other networks
ROUNDING_DB, HIFIGAN_ROUNDING_DB = 49, 41
# dB between speech from packages and speech from torch. In fp32, samples are compared: 64.7 dB with torch's AVX-512
# kernels, and 59.2 dB with those for AVX2, where torch's speech is only 59.4 dB from its own with other kernels. In
# fp16, logarithmic mels are compared, because the sum of the predicted pitches decides where a pulse is: rounding the
# pitch by 0.02 % moves pulses.
SPOKEN_FP32_DB, SPOKEN_FP16_DB = 56, 36
SMALL = CoreMLOptions(lanes=(2,), caches=("io",), buckets={"prefill": (32,), "step": (128,)})
NETWORKS = ["rlg_auto", "autoregressive"]


def speak(bundle: Bundle, backend: str, preset: str, **options) -> Speech:
    few = {"candidates": 1} if preset == "fastest" else {"candidates": 3, "diffusion": Diffusion(8, guidance=None)}
    settings = TortoiseSettings.of(preset, bundle.settings, **few)
    speaker = TortoiseSpeaker(bundle, load_backend(backend, bundle, threads=1, **options))
    return speaker.speak(SENTENCE, seed=1, settings=settings)


# Parity

FP32_FUNCTIONS = {
    "autoregressive": {"prefill_64", "step_1_512", "step_8_2304"},
    "conditioning_encoder": {"ar_conditioning_517"},
    "contextual_embedder": {"diffusion_conditioning_401"},
    "rlg_auto": {"ar_random"},
    "rlg_diffuser": {"diffusion_random"},
    "clvp": {"clvp_text_64", "clvp_speech_320"},
    "diffusion": {"condition_64", "denoise_1_320", "denoise_2_320"},
    "univnet": {"univnet_62_11"},
    "hifigan": {"hifigan_62_11"},
    "source_filter": {"source_filter_64"},
    "mel_source_filter": {"mel_source_filter_64"},
}
STATE_FUNCTIONS = {"state_1_512_512", "state_8_2304_2304", "store_32_512", "store_32_2304"}


def test_every_network_of_the_embedded_voice_is_converted_and_its_functions_reach_their_thresholds(
    fp16_bundle, fp32_bundle
):
    assert set(FP32_FUNCTIONS) == fp16_bundle.networks
    states = {"autoregressive": FP32_FUNCTIONS["autoregressive"] | STATE_FUNCTIONS}
    spoken = {network: FP32_FUNCTIONS[network] for network in SPEAKING}
    for bundle, functions in ((fp32_bundle, spoken), (fp16_bundle, FP32_FUNCTIONS | states)):
        assert {package.network: set(package.functions) for package in bundle.packages} == functions
        for package in bundle.packages:
            assert package.precision == ("fp32" if package.network == "univnet" else bundle.packages[0].precision)
            for name, function in package.functions.items():
                row = functions_of(package.network, "coreml")[function.kind]
                own = row.thresholds if package.precision == "fp32" else {}
                assert function.parity[MATHS] >= (THRESHOLDS | dict(own))[package.precision][0], name
                if package.precision == "fp16":
                    rounding = HIFIGAN_ROUNDING_DB if package.network == "hifigan" else ROUNDING_DB
                    assert function.parity[ROUNDING] >= rounding, name


def test_the_embedded_decoder_reaches_its_threshold_in_8_bits(tmp_path):
    # the dB are lowest at 16 lanes
    options = CoreMLOptions("8bit", lanes=(16,), caches=("io",), buckets={"prefill": (64,)})
    (package,) = convert(open_model("demo"), tmp_path / "out", [options], ["autoregressive"]).packages
    assert [name.partition("_")[0] for name in sorted(package.functions)] == ["prefill", "step"]
    assert min(function.parity[MATHS] for function in package.functions.values()) >= 28


def test_compressed_weights_are_smaller_and_measured(random_bundle, shared, tmp_path):
    thresholds = {"8bit": 35, "4bit": 8}
    options = [replace(SMALL, precision=name) for name in thresholds]
    bundle = convert(Bundle(random_bundle), tmp_path / "out", options, ["autoregressive"])
    full = package_of_decoder(shared, random_bundle, SMALL, NETWORKS)
    for package, (precision, threshold) in zip(bundle.packages, thresholds.items(), strict=True):
        assert package.precision == precision
        assert sum(file.bytes for file in package.files) < 0.8 * sum(file.bytes for file in full.files)
        assert set(package.functions) == {"prefill_32", "step_2_128"}
        assert all(threshold <= function.parity[MATHS] < 60 for function in package.functions.values())
        with safe_open(bundle.path / package.path / PROBES, "np") as file:
            assert min(map(float, file.metadata().values())) >= 36, "however little the weights keep"


# Speech


@pytest.mark.parametrize("preset", ["fastest", "ultra_fast"])
def test_fp32_packages_speak_as_torch_does(fp32_bundle, preset):
    expected, actual = (speak(fp32_bundle, backend, preset) for backend in ("torch:cpu", "mil"))
    assert (actual.codes, actual.chunks) == (expected.codes, expected.chunks)
    assert snr_db(expected.audio, actual.audio) >= SPOKEN_FP32_DB


@pytest.mark.parametrize("cache", ["io", "state"])
def test_fp16_packages_speak_nearly_as_torch_does(fp16_bundle, cache):
    expected, actual = speak(fp16_bundle, "torch:cpu", "fastest"), speak(fp16_bundle, "mil", "fastest", cache=cache)
    assert actual.codes == expected.codes
    assert snr_db(*(diffusion_mel(speech.audio) for speech in (expected, actual))) >= SPOKEN_FP16_DB


# Packages


def package_of_decoder(shared: Path, model: Path, options: CoreMLOptions, networks: list[str]) -> PackageRecord:
    packages = converted(shared, Bundle(model), [options], networks).packages
    return next(package for package in packages if package.network == "autoregressive")


def test_a_package_stores_shared_weights_once(random_bundle, shared):
    few = package_of_decoder(shared, random_bundle, SMALL, NETWORKS)
    many = package_of_decoder(shared, random_bundle, small_bundle.OPTIONS, small_bundle.NETWORKS)
    assert (len(few.functions), len(many.functions)) == (2, 4)
    assert (
        len({file.bytes for package in (few, many) for file in package.files if file.file.endswith("weight.bin")}) == 1
    )


def test_a_bundle_records_lint_warnings_with_the_reason_they_are_accepted(fp16_bundle):
    """Most packages have one: the embedded networks are small. Decoder and denoiser: none that the engine refuses."""
    for package in fp16_bundle.packages:
        found = [rule.record() for rule in lint(Package(fp16_bundle.path / package.path))]
        assert package.warnings == found
        assert found or "source_filter" in package.network
        assert not [entry for entry in found if entry["accepted"] == LintRule.accepted], package.network
        assert package.network not in STRICT or REFUSED not in {entry["severity"] for entry in found}


def test_every_function_is_exact_enough_where_small_numbers_are_flushed(fp16_bundle):
    """As on an M1: diffusion_conditioning once reached 30 dB, and a guided denoising step divided by 0."""
    reached = {
        name: function.parity["fp16 flushed"]
        for package in fp16_bundle.packages
        if package.precision == "fp16"
        for name, function in package.functions.items()
    }
    assert len(reached) > 10
    wrong = {name: found for name, found in reached.items() if found < 45 and not name.startswith("hifigan")}
    assert not wrong
    assert min(reached.values()) >= HIFIGAN_ROUNDING_DB, reached


def test_each_package_is_linted_once_and_not_published_if_the_engine_refuses_it(source, tmp_path, monkeypatch):
    linted = []
    gather = next(rule for rule in RULES if rule.id == "gather")
    monkeypatch.setattr(
        "converters.coreml.coreml_package.lint",
        lambda made: linted.append(made.path.name) or [BrokenRule(gather, Violation("gather", "x", "y"))],
    )
    assert_refused(
        "an operation that the Neural Engine rejects, gather: gather x: y",
        lambda: convert(source, tmp_path / "out", [SMALL], ["autoregressive"]),
    )
    assert linted == ["autoregressive-fp16.mlpackage"]


def test_the_bundle_is_complete_and_a_package_states_its_source(fp16_bundle):
    fp16_bundle.verify()
    assert sorted(path.stem for path in fp16_bundle.voices.iterdir()) == ["heart", "michael"]
    assert fp16_bundle.settings == open_model("demo").settings
    package = next(package for package in fp16_bundle.packages if package.network == "autoregressive")
    metadata = Package(fp16_bundle.path / package.path).metadata
    assert json.loads(metadata["source"])["weights_sha256"] == (
        fp16_bundle.manifest.networks["autoregressive"].weights.sha256
    )
    assert json.loads(metadata["functions"])["step_8_2304"]["bucket"] == {"columns": 8, "slots": 2304}
    assert metadata["layout"] == "(batch, channels, 1, sequence)"


# Interruptions and errors


def test_a_killed_conversion_resumes(source, tmp_path, capsys, preloaded_server):
    out = tmp_path / "out"
    flags = "--networks conditioning_encoder,rlg_auto,autoregressive --lanes 2 --buckets prefill=32 --cache io"
    arguments = ["convert", str(source.path), "--to", "coreml", "-o", str(out), *flags.split()]
    with open(os.devnull, "w") as nothing:
        command = ["-m", "ane.cli", *arguments]
        process = ForkedCommand(preloaded_server, command, dict(os.environ), nothing.fileno(), nothing.fileno())
    first = tmp_path / "out.converting" / "packages" / "autoregressive-fp16.mlpackage"
    noted = tmp_path / "out.converting" / "progress.json"
    while not (noted.is_file() and json.loads(noted.read_text())["coreml"]["packages"]):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not out.exists()
    made = first.stat().st_mtime_ns
    assert main(arguments) == 0
    assert "Kept from the interrupted conversion: autoregressive in fp16" in capsys.readouterr().err
    assert len((bundle := Bundle(out)).packages) == 3
    assert (out / bundle.packages[0].path).stat().st_mtime_ns == made
    assert not first.exists()


def test_a_killed_conversion_keeps_the_functions_of_the_package_that_it_was_writing(source, tmp_path, monkeypatch):
    """Also where the kill came between two functions, within the write of one, or after the last."""
    built: list[str] = []
    wide = replace(SMALL, buckets={"prefill": (16, 32, 64), "step": (128,)})

    def convert_until(functions: int) -> None:
        built.clear()

        def progress(network: str, activity: str) -> None:
            if activity.startswith(("building", "measuring")):
                if len(built) == functions:
                    raise KeyboardInterrupt
                built.append(activity.split(",")[0])

        convert(source, tmp_path / "out", [wide], ["autoregressive"], progress=progress)

    with pytest.raises(KeyboardInterrupt):
        convert_until(2)
    weights = next((tmp_path / "out.converting").rglob("weight.bin"))
    unfinished = next((tmp_path / "out.converting").glob("packages/*.unfinished"))
    # a killed process leaves all bytes, and a power failure may leave fewer
    for bytes_left, kept in ((None, 2), (-1, 0), (100, 0), (0, 0)):
        copied = shutil.copytree(unfinished, tmp_path / f"copied{bytes_left}")
        (copied / ".DS_Store").touch()
        [content] = copied.rglob("weight.bin")
        content.write_bytes(content.read_bytes()[:bytes_left])
        assert len(merged_functions(copied)) == kept
        assert copied.exists() == (kept > 0)
    weights.write_bytes(weights.read_bytes() + b"begun")  # bytes of the unfinished function
    with pytest.raises(KeyboardInterrupt):
        convert_until(2)
    assert built[0] == "building prefill_64"
    convert_until(100)
    assert all(activity.startswith("measuring") for activity in built)
    fresh = convert(source, tmp_path / "fresh", [wide], ["autoregressive"]).packages[0]
    assert Bundle(tmp_path / "out").packages[0].functions == fresh.functions
    [resumed_weights], [fresh_weights] = (
        [*(tmp_path / name / fresh.path).rglob("weight.bin")] for name in ("out", "fresh")
    )
    assert resumed_weights.read_bytes() == fresh_weights.read_bytes()


def test_a_conversion_killed_while_it_wrote_its_first_progress_can_be_repeated(tmp_path):
    work = tmp_path / "out.converting"
    staged = StagingFolder(work / "progress.json")
    work.mkdir()
    staged.create()
    (staged.path / "progress.json").write_text("{")
    staged.release()
    assert conversion._resume(work, "fingerprint", False, conversion.COREML_TARGET) == []
    assert json.loads((work / "progress.json").read_text())["fingerprint"] == "fingerprint"


@pytest.mark.parametrize(
    ("options", "networks", "message"),
    [
        (CoreMLOptions("fp32"), ["rlg_auto"], r"out\.converting holds an unfinished conversion .* overwrite=True"),
        (SMALL, ["rlg_diffuser"], "of other networks"),
    ],
)
def test_other_options_or_networks_do_not_resume(source, tmp_path, monkeypatch, options, networks, message):
    stop(monkeypatch, source, tmp_path / "out", ["rlg_auto"])
    assert_refused(message, lambda: convert(source, tmp_path / "out", [options], networks))
    assert convert(source, tmp_path / "out", [options], networks, overwrite=True).packages


def test_a_damaged_package_is_converted_again_on_resuming(source, tmp_path, monkeypatch):
    stop(monkeypatch, source, tmp_path / "out", ["rlg_auto"])
    weights = next((tmp_path / "out.converting").rglob("weight.bin"))
    weights.write_bytes(weights.read_bytes()[:-64])
    convert(source, tmp_path / "out", [SMALL], ["rlg_auto"]).verify()


def stop(monkeypatch, source: Bundle, out: Path, networks: list[str]) -> None:
    """Interrupt a conversion after its last package."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "write_bundle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(source, out, [SMALL], networks)


def test_packages_that_are_not_converted_again_are_kept(source, tmp_path):
    first = convert(source, tmp_path / "out", [SMALL], ["rlg_auto"])
    both = convert(first, tmp_path / "out", [SMALL], ["rlg_diffuser"], overwrite=True)
    assert [package.network for package in both.packages] == ["rlg_diffuser", "rlg_auto"]
    both.verify()


def test_one_process_at_a_time_converts_to_a_destination(source, tmp_path):
    with conversion._locked(tmp_path / "out"), pytest.raises(UserError, match="another process is converting to"):
        convert(source, tmp_path / "out", [SMALL], ["rlg_auto"])
    assert convert(source, tmp_path / "out", [SMALL], ["rlg_auto"]).packages


def test_a_package_below_its_threshold_is_not_published(source, tmp_path, monkeypatch):
    monkeypatch.setitem(THRESHOLDS, "fp16", (99.0, 99.0))
    assert_refused(
        r"rlg_auto, function ar_random, in fp16 .* below the threshold of 99",
        lambda: convert(source, tmp_path / "out", [SMALL], ["rlg_auto"]),
    )
    assert not (tmp_path / "out").exists()


def test_missing_disk_space_is_reported_before_converting(source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert_refused(r"needs about \d+ MB .* and 0 MB\s+are free", lambda: convert(source, tmp_path / "out", [SMALL]))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("network", "precision"), [("hifigan", "fp16"), ("autoregressive", "8bit")])
def test_a_function_is_deleted_when_it_is_merged(source, tmp_path, monkeypatch, network, precision):
    """Each has its own copy of the weights: of the official decoder, 24 functions of 0.8 GB."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary := tmp_path / "temporary"))
    temporary.mkdir()
    on_disk = []

    def count(name: str) -> None:
        on_disk.append([*tmp_path.glob(".functions.*/*.mlpackage"), *temporary.iterdir()])

    write_package(source, network, replace(SMALL, precision=precision), tmp_path, count)
    count("")
    assert on_disk == [[], [], []]
