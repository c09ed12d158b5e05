"""A bundle with invalid packages is reported in one line when it is opened."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ane.backends import load_backend
from ane.bundles.bundle import Bundle
from ane.bundles.packages import WEIGHTS
from ane.cli import main
from ane.commands.packages import open_undamaged
from ane.system.errors import UserError
from converters.coreml.package import CoreMLOptions
from tests.conversions import converted


@pytest.fixture(scope="module")
def intact(random_bundle, shared) -> Path:
    small = CoreMLOptions(lanes=(2,), caches=("io",), buckets={"prefill": (32,), "step": (128,)})
    return converted(shared, Bundle(random_bundle), [small], ["rlg_auto", "autoregressive"]).path


@pytest.fixture
def copied(intact, tmp_path) -> Bundle:
    return Bundle(shutil.copytree(intact, tmp_path / "copied"))


@pytest.fixture
def run(capsys) -> Callable[[Path], str]:
    """``run(bundle)``: the error line of `ane say` with an invalid bundle."""
    def say(bundle: Path) -> str:
        assert main(["say", "Hello.", "--bundle", str(bundle), "--backend", "mil", "--preset", "fastest", "-o",
                     str(bundle / "no.wav")]) == 1
        assert not (bundle / "no.wav").exists()
        line, = capsys.readouterr().err.strip().splitlines()[-1:]
        return line

    return say


def edit(bundle: Bundle, change) -> None:
    path = bundle.path / "bundle.json"
    stated = json.loads(path.read_text())
    change(stated)
    path.write_text(json.dumps(stated))


def test_a_damaged_weight_file_is_reported(copied, run):
    path = next(copied.path.rglob("autoregressive-fp16.mlpackage/**/weight.bin"))
    data = bytearray(path.read_bytes())
    data[1000] ^= 255
    path.chmod(0o644)
    path.write_bytes(data)
    assert "weight.bin has SHA-256" in run(copied.path)


def test_a_package_of_another_model_is_reported(copied, run):
    def swap(stated):
        packages = {package["network"]: package for package in stated["coreml"]["packages"]}
        packages["autoregressive"]["source"][WEIGHTS] = "0" * 64

    edit(copied, swap)
    assert "was converted from other weights" in run(copied.path)


@pytest.mark.parametrize(("change", "problem"), [
    (lambda package: package.update(functions={}), "functions dictionary should have at least 1 item"),
    (lambda package: package.update(files=[]), "files list should have at least 1 item"),
    (lambda package: package.update(path="../elsewhere.mlpackage"), "must have its files in it"),
    (lambda package: next(iter(package["functions"].values())).update(bucket={"columns": "many"}),
     "bucket: columns must be a valid integer"),
    (lambda package: package.update(compute_units="GPU"), "compute_units must be 'CPU_ONLY'"),
])
def test_an_invalid_record_is_reported(copied, change, problem):
    edit(copied, lambda stated: change(stated["coreml"]["packages"][0]))
    with pytest.raises(UserError, match=problem):
        Bundle(copied.path)


def test_packages_of_unknown_networks_are_ignored(copied):
    edit(copied, lambda stated: stated["coreml"]["packages"][0].update(network="whisperer"))
    assert [package.network for package in Bundle(copied.path).packages] == ["rlg_auto"]


def test_a_precision_without_a_decoder_package_is_refused(fp16_bundle):
    with pytest.raises(UserError, match="has its autoregressive in fp16, not in fp32"):
        load_backend("mil", fp16_bundle, precision="fp32")


def test_compute_units_are_refused_for_the_interpreter(fp16_bundle):
    with pytest.raises(UserError, match="compute_units has no effect on the backend mil"):
        load_backend("mil", fp16_bundle, compute_units="CPU_ONLY")


def test_networks_without_a_package_are_named(copied):
    assert load_backend("mil", copied).name == "mil fp16, on torch: clvp, diffusion, hifigan, univnet"


def test_a_damaged_cached_copy_of_the_embedded_voice_is_not_used(copied):
    assert open_undamaged(copied.path).packages
    next(copied.path.rglob("weight.bin")).unlink()
    assert open_undamaged(copied.path) is None


def test_packages_of_a_later_version_are_reported(copied, run):
    edit(copied, lambda stated: stated["coreml"].update(format=2))
    assert "update tortoise-ane" in run(copied.path)


def test_a_text_too_long_for_every_bucket_is_reported(copied, run):
    assert "largest decoder bucket of this bundle has 128" in run(copied.path)


def test_a_bundle_without_packages_explains_how_to_convert_it(source, run):
    assert "ane convert" in run(source.path)
