"""Test `ane cache` as a user runs it."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from ane.backends.coreml.compiled import CompiledCache
from ane.backends.coreml.tools import MacMachine
from ane.system import paths
from ane.system.files import replacing
from tools.campaigns.kill import in_child

HERE, OLD = MacMachine("Apple M2", "25A354"), MacMachine("Apple M2", "24F74")


@pytest.fixture
def ane(succeed):
    """``ane("list")``: what the command prints; it must succeed."""
    return partial(succeed, "cache")


@pytest.fixture
def kept(ane, tmp_path, monkeypatch) -> dict[str, Path]:
    """A cache with some of everything, by what it is; with it what must never be touched."""
    for name in ("used", "gone"):
        (tmp_path / f"{name}.mlpackage").mkdir()
        (tmp_path / f"{name}.mlpackage" / "weights").write_bytes(name.encode() * 100)
    items = {
        "now": compiled(tmp_path / "used.mlpackage", HERE),
        "old": compiled(tmp_path / "used.mlpackage", OLD),
        "gone": compiled(tmp_path / "gone.mlpackage", HERE),
    }
    shutil.rmtree(tmp_path / "gone.mlpackage")
    for what, place in (
        ("latents", "voices/ab.safetensors"),
        ("stamp", "verified/cd.json"),
        ("old latents", "voices/ef.safetensors"),
    ):
        items[what] = write(paths.cache_dir() / place)
    items["mine"] = write(paths.data_dir() / "voices" / "me.safetensors")
    items["bundle"] = write(paths.data_dir() / "bundles" / "b" / "bundle.json")
    items["foreign"] = write(paths.cache_dir() / "somebody" / "else.json")
    items["foreign folder"] = write(paths.cache_dir() / "compiled" / "notes" / "x.txt").parent
    (paths.cache_dir() / "voices" / "link.safetensors").symlink_to(items["mine"])
    items["link"] = paths.cache_dir() / "voices" / "link.safetensors"
    return items


UNTOUCHED = {"mine", "bundle", "foreign", "foreign folder", "link"}


def compiled(package: Path, machine: MacMachine) -> Path:
    path, _ = CompiledCache().model(package, machine, lambda source, target: shutil.copytree(source, target))
    return path.parent


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 1000)
    return path


def there(kept: dict[str, Path]) -> set[str]:
    return {what for what, path in kept.items() if os.path.lexists(path)}


def test_the_list_shows_what_is_cached_and_its_size(ane, kept):
    out = ane("list")
    assert out.endswith(f"\n{paths.cache_dir()}: 8 items, 0.0 MB\n")
    rows = [line.split("\t") for line in out.splitlines()[:-1]]
    assert {kind: int(count) for kind, count, _ in rows} == {
        "compiled models": 3,
        "hashes of verified files": 3,
        "latents of clips": 2,
        "Core ML packages of the embedded voice": 0,
        "TensorRT engines and timings": 0,
        "single functions of packages that Core ML rejects whole": 0,
        "fastest engines that `ane bench` measured": 0,
        "unfinished files of killed processes": 0,
    }


@pytest.mark.parametrize("what", ["old/used.mlmodelc/weights", "latents"])
def test_what_another_process_deletes_while_it_is_listed_has_no_size(ane, kept, monkeypatch, what):
    """The file is gone when the system is asked for its size."""
    item, _, rest = what.partition("/")
    file, lstat = kept[item] / rest, os.lstat

    def deleting(path, *args, **kwargs):
        if str(path) == str(file):
            file.unlink(missing_ok=True)
        return lstat(path, *args, **kwargs)

    monkeypatch.setattr(os, "lstat", deleting)
    assert "Would delete 8 items" in ane("clear", "--dry-run")
    assert not file.exists()


def test_clear_deletes_what_can_be_computed_again_and_nothing_else(ane, kept):
    assert "Deleted 8 items" in ane("clear")
    assert there(kept) == UNTOUCHED
    assert ane("list") == f"{paths.cache_dir()}: empty\n"


def test_a_dry_run_names_what_it_would_delete(ane, kept):
    out = ane("clear", "--dry-run")
    assert f"would delete {kept['old']}, " in out
    assert "Would delete 8 items" in out
    assert there(kept) == set(kept)


def test_damaged_entries_and_unfinished_files_are_deleted(ane, kept):
    (kept["now"] / "compiled.json").write_text("{")
    half = kept["now"].parent / f".{'0' * 32}.abc.partial"
    (half / "x").mkdir(parents=True)
    crumb = killed_while_writing(paths.cache_dir() / "voices" / "gh.safetensors")
    ane("clear")
    assert not any(path.exists() for path in (kept["now"], half, crumb))


@pytest.mark.parametrize("folder", [paths.bundles_dir, paths.voices_dir, paths.data_dir, paths.cache_dir])
def test_leftovers_of_killed_processes_are_found_wherever_files_are_written(ane, folder):
    abandoned = killed_while_writing(folder() / "mine.safetensors")
    finished = write(folder() / "mine" / "weights.bin")
    with replacing(folder() / "other.safetensors") as unfinished:
        assert str(abandoned) in ane("clear", "--dry-run")
        assert "Deleted 1 item" in ane("clear")
        assert unfinished.parent.exists(), "this process is still writing it"
        unfinished.write_bytes(b"whole")
    assert not abandoned.exists()
    assert finished.exists()


def killed_while_writing(file: Path) -> Path:
    """The temporary folder of a process that was killed while it wrote ``file``."""

    def write_half() -> None:
        with replacing(file) as path:
            path.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(write_half) == -signal.SIGKILL
    (folder,) = file.parent.glob(".*.partial")
    return folder


def test_a_linked_folder_is_not_followed(ane, kept, tmp_path):
    """Whoever keeps the latents elsewhere by a link keeps them."""
    shutil.move(kept["latents"].parent, tmp_path / "elsewhere")
    kept["latents"].parent.symlink_to(tmp_path / "elsewhere")
    ane("clear")
    assert (tmp_path / "elsewhere" / "ab.safetensors").exists()
