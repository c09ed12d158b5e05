"""`ane convert --to coreai`: a bundle's packages as assets for Apple's own tools."""

import importlib.util
import json
from pathlib import Path

import pytest

from ane.bundles.bundle import Bundle
from ane.bundles.hashes import sha256_of
from tests.small_bundle import write_small_bundle

needs_core_ai = pytest.mark.skipif(importlib.util.find_spec("coreai") is None,
                                   reason="needs Core AI: pip install '.[coreai]'")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"), ["clvp", "rlg_auto"])


@needs_core_ai
def test_each_package_becomes_an_asset_with_all_its_functions(small, tmp_path, succeed):
    printed = succeed("convert", small, "--to", "coreai", "-o", tmp_path / "assets")
    packages = {f"{Path(package.path).stem}.aimodel": package for package in Bundle(small).packages}
    assert {path.name for path in (tmp_path / "assets").iterdir()} == {*packages, "assets.json"}
    stated = json.loads((tmp_path / "assets" / "assets.json").read_text())
    for name, package in packages.items():
        from coreai.authoring import AIModelAsset

        program = AIModelAsset.load(tmp_path / "assets" / name).program
        assert all(f"@{function}" in str(program) for function in package.functions)
        assert stated["assets"][name]["functions"] == list(package.functions)
        files = [path for path in (tmp_path / "assets" / name).rglob("*") if path.is_file()]
        assert {path.relative_to(tmp_path / "assets" / name).as_posix(): sha256_of(path) for path in files} == \
            stated["assets"][name]["files"]
        assert name in printed


@needs_core_ai
def test_networks_can_be_chosen_and_only_such_a_folder_is_replaced_by_force(small, tmp_path, complain, succeed):
    command = (small, "--to", "coreai", "--networks", "rlg_auto", "-o", tmp_path / "assets")
    succeed("convert", *command)
    assert [path.name for path in (tmp_path / "assets").glob("*.aimodel")] == ["rlg_auto-fp16.aimodel"]
    assert "--force" in complain("convert", *command)
    succeed("convert", *command, "--force")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    assert "is not replaced" in complain("convert", *command[:-1], tmp_path / "other", "--force")
    assert (tmp_path / "other" / "mine.txt").exists()
    assert "univnet" in complain("convert", *command[:4], "univnet", "-o", tmp_path / "none")


@needs_core_ai
def test_a_model_without_packages_is_refused_with_the_command_that_makes_them(small, golden_copy, tmp_path, complain):
    for source in (small.parent / "plain", golden_copy):
        assert "--to coreml" in complain("convert", source, "--to", "coreai", "-o", tmp_path / "none")


def test_a_flag_of_another_target_is_refused(small, tmp_path, complain):
    assert "--lanes has no effect with --to coreai" in complain("convert", 
        small, "--to", "coreai", "--lanes", "1", "-o", tmp_path / "none")
