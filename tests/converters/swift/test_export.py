"""Test the output and the errors of `ane export-swift`. If there is a Swift compiler, run the Swift package's tests."""

import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ane.bundles.bundle import Bundle
from ane.cli import main
from converters.swift.export import token_tables, write_arrays
from converters.swift.golden import fingerprint
from tests.conversions import converted
from tests.edits import edit_json
from tests.random_model import random_model
from tests.small_bundle import OPTIONS

MODEL = Path("Sources/TortoiseCoreML/Model")
BUCKETS = {"prefill": (32,), "step": (64, 96), "hifigan": (14,)}
LIMIT_S = 600
needs_swift = pytest.mark.skipif(
    shutil.which("swift") is None,
    reason=("there is no Swift compiler: install one of swift.org, or on Debian 13 `apt-get install swiftlang`"),
)


@pytest.fixture(scope="module")
def small(random_bundle: Path, shared: Path) -> Path:
    options = replace(OPTIONS, caches=("io",), buckets=BUCKETS)
    return converted(shared, Bundle(random_bundle), [options], ["autoregressive", "hifigan"]).path


@pytest.fixture(scope="module")
def exported(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("swift") / "voice"
    assert main(["export-swift", "-q", "--bundle", str(small), "-o", str(path)]) == 0
    return path


def files(folder: Path) -> dict[str, str]:
    """SHA-256 of each file by its path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_package_has_a_manifest_sources_tables_packages_and_golden_vectors(small: Path, exported: Path) -> None:
    written = files(exported)
    assert {
        "Package.swift",
        "README.md",
        "Sources/Tortoise/Synthesis.swift",
        "Sources/TortoiseCoreML/Speaker.swift",
        "Tests/TortoiseTests/GoldenTests.swift",
        "Tests/TortoiseTests/Golden/golden.json",
        "Tests/TortoiseTests/Golden/golden.f32",
        f"{MODEL}/tables.f32",
    } < set(written)
    tables = json.loads((exported / MODEL / "tortoise.json").read_text())
    assert (tables["voices"], tables["defaultVoice"]) == (["noise"], "noise")
    for network in ("autoregressive", "hifigan"):
        package = tables["packages"][network]["path"]
        source = files(small / package)
        assert source
        assert source == files(exported / MODEL / package)


def test_the_recorded_calls_use_every_kind_of_function_and_the_pool_grows(exported: Path) -> None:
    golden = json.loads((exported / "Tests/TortoiseTests/Golden/golden.json").read_text())
    calls = [call["function"] for replay in golden["replays"] for call in replay["calls"]]
    assert set(calls) == {"prefill_32", "step_2_64", "step_2_96", "hifigan_14_14"}


def test_arrays_of_a_file_are_where_its_index_states(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([7.5, -1], np.float16)}
    index = write_arrays(tmp_path / "x", arrays)
    values = np.fromfile(tmp_path / "x", "<f4")
    for name, array in arrays.items():
        found = values[index[name]["offset"] :][: array.size].reshape(index[name]["shape"])
        assert np.array_equal(found, array)


def test_a_fingerprint_changes_when_two_values_change_places() -> None:
    array = np.random.default_rng(0).standard_normal((3, 100))
    swapped = array.copy()
    swapped[[1, 2]] = swapped[[2, 1]]
    first, second = fingerprint(array), fingerprint(swapped)
    assert np.isclose(first["norm"], second["norm"])
    assert abs(first["product"] - second["product"]) > 1e-3 * first["norm"]
    weight = (1_664_525 + 1_013_904_223) % 2**32
    assert np.isclose(fingerprint(np.array([2.0]))["product"], 2 * (weight / 2**32 - 0.5))


def test_a_bundle_without_packages_is_refused_with_the_command_that_makes_them(complain, tmp_path: Path) -> None:
    assert "ane convert" in complain("export-swift", "--bundle", "demo", "-o", tmp_path / "voice")
    assert "heart model" in complain("export-swift", "--bundle", "heart", "-o", tmp_path / "voice")


def test_a_bundle_without_steps_of_the_cache_io_is_refused(complain, small: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(small, tmp_path / "bundle")

    def without_steps(content: dict) -> None:
        for package in content["coreml"]["packages"]:
            package["functions"] = {
                name: function for name, function in package["functions"].items() if function["kind"] != "step"
            }

    edit_json(bundle / "bundle.json", without_steps)
    assert "--cache io" in complain("export-swift", "--bundle", bundle, "-o", tmp_path / "voice")


def test_only_an_exported_package_is_replaced_and_only_by_force(
    complain, small: Path, exported: Path, tmp_path: Path
) -> None:
    target = tmp_path / "voice"
    shutil.copytree(exported, target)
    assert "add --force" in complain("export-swift", "--bundle", small, "-o", target)
    (target / "of-an-earlier-version").touch()
    assert main(["export-swift", "-q", "--bundle", str(small), "-o", str(target), "--force"]) == 0
    assert files(target) == files(exported)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    assert "is not replaced" in complain("export-swift", "--bundle", small, "-o", tmp_path / "other", "--force")
    assert "is a file" in complain("export-swift", "--bundle", small, "-o", tmp_path / "other" / "notes.txt")


def test_an_unknown_voice_is_refused(complain, small: Path, tmp_path: Path) -> None:
    assert "nobody" in complain("export-swift", "--bundle", small, "-v", "nobody", "-o", tmp_path / "voice")


def test_tokenizers_of_other_kinds_are_refused() -> None:
    content = json.loads(random_model().tokenizer)
    assert token_tables(json.dumps(content))["unknown"] == 1
    content["pre_tokenizer"] = {"type": "ByteLevel"}
    with pytest.raises(Exception, match="neither byte-pair encoding of words"):
        token_tables(json.dumps(content))


def swift(*arguments: object, folder: Path) -> None:
    done = subprocess.run(
        list(map(str, arguments)),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-6000:]


@needs_swift
@pytest.mark.timeout(LIMIT_S)
def test_the_package_passes_its_tests(exported: Path, tmp_path: Path) -> None:
    """Every call's inputs, the codes and the sound equal those that the Python runtime recorded."""
    swift("swift", "test", folder=shutil.copytree(exported, tmp_path / "voice"))


@needs_swift
@pytest.mark.timeout(LIMIT_S)
def test_the_sources_for_core_ml_have_the_right_types(exported: Path, tmp_path: Path) -> None:
    """Against the stated declarations of Core ML; the package itself compiles them on Apple's systems only."""
    modules = tmp_path / "modules"
    modules.mkdir()
    emit = ("swiftc", "-swift-version", "6", "-parse-as-library", "-emit-module", "-emit-module-path", modules)
    stub = shutil.copy(Path(__file__).parent / "CoreML.swift", tmp_path)
    sources = exported / "Sources"
    swift(*emit, "-module-name", "CoreML", stub, folder=tmp_path)
    swift(*emit, "-module-name", "Tortoise", *sorted((sources / "Tortoise").glob("*.swift")), folder=tmp_path)
    accessor = tmp_path / "accessor.swift"  # SwiftPM writes this file
    accessor.write_text("import Foundation\nextension Bundle { static var module: Bundle { .main } }\n")
    swift(
        "swiftc",
        "-swift-version",
        "6",
        "-typecheck",
        "-warnings-as-errors",
        "-I",
        modules,
        "-module-name",
        "TortoiseCoreML",
        accessor,
        *sorted((sources / "TortoiseCoreML").glob("*.swift")),
        folder=tmp_path,
    )
