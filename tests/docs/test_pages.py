"""Test that pages are true, and that the files for services start the programs that they name."""

import inspect
import json
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ane
from ane.cli import parser
from docs import generate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
README_BYTES = 8000
FOLDERS = ("ane", "converters", "training", "benchmarks", "tests", "tools", "docs", ".ci")
NAMED_PATH = re.compile(r"`((?:" + "|".join(map(re.escape, FOLDERS)) + r")/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")
# modules that `ane say` on torch imports, but that no step of it on the CPU runs
OFF_THE_PATH = {  # modules that are called, but not needed to understand how a text becomes sound
    "ane/commands/": "flags of the other commands, messages, progress; what `ane say` itself has is on the path",
    "ane/system/": "files, interruption, records",
    "ane/text/": "rules of English, dictionaries, other letters",
    "ane/audio/time_stretch.py": "of a speed that the network does not make",
    "ane/bundles/hashes.py": "comparing files with their hashes",
    "ane/bundles/package_records.py": "of converted models",
    "ane/speech/async_speech.py": "methods for asyncio",
    "ane/backends/torch/static_decoder.py": "for GPUs: whether it is wanted",
}
# program that prints the files of ane whose functions are called, except for calls while a module is imported
TRACE = """
import sys, threading
from ane.cli import main
files, importing = set(), 0
def profile(frame, event, _):
    global importing
    if frame.f_code.co_name == "<module>":
        importing += {"call": 1, "return": -1}.get(event, 0)
    elif event == "call" and not importing and frame.f_code.co_flags & 1:
        files.add(frame.f_code.co_filename)
sys.setprofile(profile)
threading.setprofile(profile)
status = main(["say", "Hi.", "-o", "-", "-q"])
status = status or main(["say", "Hi.", "-o", "-", "-q", "--seed", "1", "--bundle", "demo"])
sys.setprofile(None)
print(*files, sep="\\n", file=sys.stderr)
sys.exit(status)
"""
RESULT = re.compile(r"`([\w.-]+\.json)`")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


def test_every_page_is_in_the_navigation_and_in_the_table_of_the_readme() -> None:
    navigation, readme = (ROOT / "mkdocs.yml").read_text(), (ROOT / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        assert f": {page.name}\n" in navigation, page.name
        assert page.stem == "index" or f"](docs/{page.name})" in readme, page.name


def test_the_page_of_the_api_lists_the_arguments_that_help_shows() -> None:
    griffe = pytest.importorskip("griffe", reason="pip install 'tortoise-ane[docs]'")
    assert "docs/fields.py" in (ROOT / "mkdocs.yml").read_text()
    extensions = griffe.load_extensions(str(DOCS / "fields.py"))
    speaker = griffe.load("ane", extensions=extensions, search_paths=[str(ROOT)])["speech.speaker.Speaker"]
    for name in ("speak", "speak_all", "stream", "feed", "speak_async", "stream_async"):
        shown = inspect.signature(getattr(ane.Speaker, name)).parameters
        assert [parameter.name for parameter in speaker.all_members[name].parameters] == list(shown)
    voice = speaker["speak"].parameters["voice"]
    assert (voice.annotation, voice.default) == ("str | Path | Voice | None", "None")
    assert "seed: Random seed" in speaker["speak"].docstring.value


def test_the_generated_tables_are_current() -> None:
    stale = [page.name for page in generate.PAGES if generate.generated(text := page.read_text("utf-8")) != text]
    assert not stale, "run python docs/generate.py"


def test_a_result_of_code_that_has_changed_is_named(tmp_path, monkeypatch) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    page, source = tmp_path / "page.md", tmp_path / "ane" / "backends" / "steps.py"
    page.write_text("Measured: `steps.json`, `stated-not.json`, `lost.json`.")
    source.parent.mkdir(parents=True)
    git("init", "-q")
    for text in ("1", "2"):
        source.write_text(text)
        git("add", "ane")
        git("commit", "-qm", text)
    first, last = git("rev-list", "HEAD").split()[::-1]
    for name, commit in (("steps", first), ("stated-not", None), ("lost", "0" * 40), ("unnamed", first)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": {"commit": commit, "date": "2026-11-28T10:00"}}))
    for name, value in (("ROOT", tmp_path), ("RESULTS", tmp_path), ("PAGES", [page])):
        monkeypatch.setattr(generate, name, value)
    assert f"| `steps.json` | {first} | 2026-11-28 |" in generate.results_list()
    assert [warning.split(":")[0] for warning in generate.outdated_results()] == [
        "lost.json",
        "stated-not.json",
        "steps.json",
    ]
    assert f"1 commits since {first} changed ane/backends" in generate.outdated_results()[2]
    (tmp_path / "steps.json").write_text(json.dumps({"machine": {"commit": last, "date": ""}}))
    assert len(generate.outdated_results()) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for named in (name for name in NAMED_PATH.findall(text) if "NAME" not in name):
        assert (ROOT / named).exists(), f"{page.name} names {named}"
    for link in LINK.findall(text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_figure_names_results_that_exist_and_all_are_named() -> None:
    names = {file.name for file in (ROOT / "benchmarks" / "results").glob("*.json")}
    for page in (DOCS / "benchmarks.md", DOCS / "embedded-voice.md", DOCS / "core-ml.md"):
        named = set(RESULT.findall(page.read_text(encoding="utf-8"))) - {"bundle.json", "config.json"}
        assert named, page.name
        assert named <= names, f"{page.name} names {named - names}"
    texts = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (*PAGES, *ROOT.glob("ane/demo/*/MODEL.md"), *ROOT.glob("ane/**/*.py"))
    )
    assert not [name for name in names if name not in texts], "nothing cites these results: delete them"


def test_every_benchmark_that_a_page_names_exists() -> None:
    from benchmarks.__main__ import arguments_parser

    [commands] = [action.choices for action in arguments_parser()._actions if action.dest == "command"]
    for page in PAGES:
        for name in re.findall(r"python -m benchmarks ([a-z][\w-]*)", page.read_text(encoding="utf-8")):
            assert name in commands, f"{page.name} names the benchmark {name}"


def test_the_reading_path_holds_what_speaking_calls(python: Path) -> None:
    """`ane say` on torch, by hibari and by Tortoise, calls functions of no file that the tables leave out."""
    done = subprocess.run([python, "-c", TRACE], capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    folder = f"{ROOT}/"
    called = {
        name.removeprefix(folder) for name in done.stderr.decode().splitlines() if name.startswith(f"{folder}ane/")
    }
    listed = {
        generate.module_file(module).relative_to(ROOT).as_posix()
        for path in generate.PATHS.values()
        for modules in path.values()
        for module in modules
    }
    missing = [name for name in called - listed if not name.startswith(tuple(OFF_THE_PATH))]
    assert called & listed
    assert not missing, sorted(missing)


def block(begin: str) -> str:
    page = (DOCS / "server.md").read_text(encoding="utf-8")
    [found] = re.findall(rf"```text\n({re.escape(begin)}.*?)```", page, re.DOTALL)
    return found


def accepted(command: list[str]) -> bool:
    """Whether the command line of `ane` knows these arguments."""
    return parser().parse_args(command).handler is not None


def test_the_systemd_unit(tmp_path):
    unit = block("[Unit]")
    [line] = re.findall(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)
    assert accepted(line.split())
    if shutil.which("systemd-analyze") is None:
        pytest.skip("the unit's keys were not checked: needs systemd-analyze")
    (tmp_path / "ane.service").write_text(unit.replace("%h/.venv/bin/ane", sys.executable))
    found = subprocess.run(["systemd-analyze", "verify", str(tmp_path / "ane.service")], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_launchd_file():
    content = plistlib.loads(block("<?xml").encode())
    assert accepted(content["ProgramArguments"][1:])
    assert content["KeepAlive"] == {"SuccessfulExit": False}
    assert content["ExitTimeOut"] > 30  # the server has 30 s to end its requests
    assert content["ProcessType"] == "Interactive"  # otherwise macOS slows down programs without a window
    assert content["StandardErrorPath"].endswith(".log")
    # the folders of sw_vers and sysctl
    assert {"/usr/bin", "/usr/sbin"} <= {*content["EnvironmentVariables"]["PATH"].split(":")}


def test_the_container_runs_a_command_that_exists_as_a_user_without_rights():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    command = json.loads(next(line.removeprefix("CMD ") for line in lines if line.startswith("CMD ")))
    assert accepted(command[1:])
    assert "USER ane" in lines[max(index for index, line in enumerate(lines) if line.startswith("FROM")) :]
    [check] = [json.loads(line.partition("CMD ")[2]) for line in lines if line.startswith("HEALTHCHECK")]
    assert "127.0.0.1:8880/health" in check[-1]
    compile(check[-1], "health check", "exec")


def test_compose_gives_the_container_a_token_a_volume_and_time_to_end():
    service = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["ane"]
    assert service["environment"]["ANE_TOKEN"].startswith("${ANE_TOKEN:?")
    assert service["volumes"] == ["models:/models"]
    assert int(service["stop_grace_period"].removesuffix("s")) > 30
    assert service["ports"] == ["127.0.0.1:8880:8880"]
