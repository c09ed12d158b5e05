"""The cache of Core AI assets, with files in place of assets: Core AI itself is not needed."""

import os
from pathlib import Path

import pytest

from ane.backends.coreai import assets
from ane.backends.coreai.assets import AssetCache, AssetRecord
from ane.system.errors import UserError


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ANE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(assets, "coreai_version", lambda: "1.0")
    (tmp_path / "model.mlpackage").mkdir()
    (tmp_path / "model.mlpackage" / "weights").write_bytes(b"w" * 100)
    return tmp_path / "model.mlpackage"


@pytest.fixture
def ask(package):
    """``ask(fp16=True, …)``: the path of the asset, and whether it was written for this call."""
    def ask(functions=("a", "b"), fp16=False, suffix="aimodelx") -> tuple[Path, bool]:
        written = []

        def write(path: Path) -> None:
            path.mkdir()
            (path / "main.odix").write_bytes(b"program")
            written.append(path)

        return AssetCache().asset(package, list(functions), fp16, suffix, write), bool(written)
    return ask


def test_an_asset_is_written_once_for_a_package_its_functions_and_its_precision(ask):
    path, written = ask()
    assert written
    assert path.name == "model.aimodelx"
    assert ask(functions=("b", "a")) == (path, False)
    others = [ask(fp16=True), ask(functions=("a",)), ask(suffix="aimodel")]
    assert all(written for _, written in others)
    assert len({path, *(other for other, _ in others)}) == 4


def test_another_package_or_version_of_core_ai_gets_an_asset_of_its_own(ask, package, monkeypatch):
    first, _ = ask()
    record = AssetRecord.read(first.parent)
    assert record.stale() == ""
    monkeypatch.setattr(assets, "coreai_version", lambda: "1.1")
    second, written = ask()
    assert written
    assert second != first
    assert record.stale() == "for Core AI 1.0"
    (package / "weights").write_bytes(b"v" * 100)
    assert ask()[1]
    assert AssetRecord.read(second.parent).stale() == "its package was replaced"
    os.rename(package, package.with_name("elsewhere"))
    assert AssetRecord.read(second.parent).stale() == "its package is gone"


@pytest.mark.parametrize("damage", [
    lambda file: file.write_bytes(b"progRam"), lambda file: file.write_bytes(b"prog"), lambda file: file.unlink(),
    lambda file: file.with_name("more").touch(), lambda file: (file.parent.parent / "asset.json").write_text("{}")])
def test_a_damaged_asset_is_never_returned_but_written_again(ask, damage):
    path, _ = ask()
    damage(path / "main.odix")
    assert ask() == (path, True)
    assert [file.read_bytes() for file in path.iterdir()] == [b"program"]
    assert ask() == (path, False)


def test_an_asset_that_cannot_be_written_leaves_nothing_behind(package, tmp_path):
    def write(path: Path) -> None:
        path.mkdir()
        raise UserError("an op is not supported")

    cache = AssetCache()
    with pytest.raises(UserError, match="an op is not supported"):
        cache.asset(package, ["a"], False, "aimodel", write)
    assert list(cache.folder.iterdir()) == []


def test_a_missing_package_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no Core ML package at .*missing"):
        AssetCache(tmp_path).asset(tmp_path / "missing.mlpackage", ["a"], False, "aimodel", lambda path: None)
