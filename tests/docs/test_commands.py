"""Run every command and every Python example of README and docs, in the order of the page.

If a block cannot run in a test, a comment on the line before it says why: `<!-- not run: needs a Mac -->`.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"(?ms)(?:^<!-- not run: (?P<reason>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$")
REASONS = {
    "needs a Mac",
    "needs Core AI",
    "needs an NVIDIA GPU",
    "needs the network",
    "needs a loudspeaker",
    "needs a cluster",
    "needs a container engine",
    "needs a running server",
    "needs a book",
    "needs the official weights",
    "takes hours",
    "takes minutes",
    "`.ci/run` runs it",
    "test_package_loops.py runs it",
}
LANGUAGES = {"bash", "python", "swift", "text", "toml"}
LIMIT_S = 240  # maximum seconds for a block. 124 is the status of a block that takes longer


@dataclass(frozen=True)
class ExampleBlock:
    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.name}, line {self.line}"


def blocks(page: Path) -> list[ExampleBlock]:
    text = page.read_text(encoding="utf-8")
    return [
        ExampleBlock(
            page, text[: found.start("language")].count("\n") + 1, found["language"], found["text"], found["reason"]
        )
        for found in FENCE.finditer(text)
    ]


def runnable(page: Path) -> list[ExampleBlock]:
    return [block for block in blocks(page) if block.language in ("bash", "python") and block.reason is None]


def script(block: ExampleBlock) -> list[str]:
    limited = ["timeout", "--kill-after=5", str(LIMIT_S)]  # also ends the processes of a pipe
    if block.language == "python":
        return [*limited, "python", "-c", block.text]
    return [*limited, "bash", "-euo", "pipefail", "-c", block.text]


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.stem)
def test_every_example_of_a_page_runs(page: Path, reader: tuple[Path, dict[str, str]]) -> None:
    folder, environment = reader
    for block in runnable(page):
        done = subprocess.run(
            script(block),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{block} exits with {done.returncode}:\n{block.text}\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_names_its_language_and_a_known_reason_not_to_run(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block}: the language is {block.language!r}, not one of {LANGUAGES}"
        assert block.reason is None or block.reason in REASONS, f"{block}: {block.reason!r} is not one of {REASONS}"


def test_the_justfile_has_each_check_of_contributing() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Run the checks")[1]
    commands = [line.split("  #")[0].strip() for line in section.split("```")[1].splitlines()[3:]]
    recipes = (ROOT / "justfile").read_text(encoding="utf-8").replace(" {{FOLDER}}", "")
    assert commands
    assert not [command for command in commands if f"    {command}\n" not in recipes]
