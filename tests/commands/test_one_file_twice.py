"""Test that no command replaces a file that it reads, or writes two outputs to one file. It stops before any work."""

import shlex
import shutil
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from ane.bundles.opening import demo_bundle
from ane.cli import parser
from ane.commands.file_flags import check_files
from ane.system.errors import UserError
from tests.commands.conftest import RATE

TABLE = Path(__file__).parent / "one_file_twice.tsv"
CASES = [tuple(line.split("\t")) for line in TABLE.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
TEXTS = {
    "text.wav": "Hello.",
    "text-1.wav": "Hello.\nThere.\n",
    "book.md": "# One\n\nHello.\n",
    "lexicon.tsv": "a\tb\n",
    "lexicon.srt": "a\tb\n",
    "cast.toml": 'narrator = "clip.wav"\n',
    "cast.json": 'narrator = "random"\n',
    "text.srt": "1\n00:00:01,000 --> 00:00:02,000\nHello.\n",
    "model/vocoder.pt": "",
    "model/weights.pt": "",
    "a.npz": "",
    "b.npz": "",
    "clip.pth": "",
    "latents/one.pth": "",
    "weights.pt": "",
    "p.mlpackage/Manifest.json": "{}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, golden_checkpoints, golden_config, speech) -> Path:
    """Models and files of a user; the commands must not change them."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("model", "model/inner", "home/bundles/named"):
        shutil.copytree(demo_bundle("heart"), folder / name)
    shutil.copytree(demo_bundle("demo"), folder / "tortoise")
    shutil.copytree(golden_checkpoints, folder / "checkpoints", copy_function=shutil.copyfile)
    shutil.copyfile(golden_config, folder / "checkpoints" / "config.json")
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("clip.wav", "folder/one.wav", "home/voices/stored/one.wav"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, speech, RATE)
    (folder / "link.wav").symlink_to("clip.wav")
    (folder / "hard.wav").hardlink_to(folder / "clip.wav")
    Image.new("RGB", (40, 60)).save(folder / "cover.jpg")
    return folder


@pytest.fixture
def files(folder, monkeypatch):
    """A function that returns the state of all files of the user, who is in their folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ANE_HOME", str(folder / "home"))

    def state() -> dict[Path, tuple[int, ...]]:
        found = {path: path.stat() for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts}
        return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}

    return state


@pytest.mark.parametrize(("command", "message"), CASES, ids=[command for command, _ in CASES])
def test_an_output_that_is_an_input_or_another_output_is_refused(complain, files, command, message):
    before = files()
    line = complain(*shlex.split(command))
    assert message in line
    assert files() == before


def test_a_bundle_beside_the_files_of_a_model_is_replaced(files, capsys):
    """A folder that a flag names stands for the files of a model in it, not for the bundle that was written there."""
    args = parser("import").parse_args(["import", "weights.pt", "-o", "./model", "--voices", ".", "--force"])
    check_files(args, {"output": Path("model")}, models=("voices",))
    with pytest.raises(UserError, match="--voices reads it"):
        check_files(args, {"output": Path("weights.pt")}, models=("voices",))
