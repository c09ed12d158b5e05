"""Write the tables of the documentation that are derived from files: line counts, and figures of benchmarks.

    python docs/generate.py             rewrites them in place
    python docs/generate.py --check     exits with status 1, and names the pages, when one is out of date; warns of
                                        results that measured code which has changed since

A generated table stands between two comments. The first says what it is made from; the second is `<!-- end -->`:

    <!-- reading path -->
    <!-- every file -->
    <!-- results -->
    <!-- table: decode-2-threads.json 0 | decoder = decoder; step ms = ms a step | lanes = 1|8|16 -->

A benchmark's table names a file of `benchmarks/results/`, the index of the table in it, the columns to show with the
headings to give them, and optionally a column and the values (a regular expression) of the rows to keep. "results"
lists the files of `benchmarks/results/` that pages name, with the commit that each measured.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import tokenize
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(?ms)^<!-- (reading path[^\n]*?|every file|results|table: [^\n]*?) -->\n.*?^<!-- end -->$")

# files of the table of every file
LISTED = [
    *(f"{folder}/**/*.py" for folder in ("ane", "converters", "training", "benchmarks", "tools", "examples", "docs")),
    *(
        "ane/**/*.html",
        "ane/**/*.tsv",
        "ane/**/*.cpp",
        "ane/**/*.h",
        "converters/*.tsv",
        "converters/swift/template/**/*.swift",
    ),
    *("training/*.sh", "training/*.toml", "training/config/*.toml", "benchmarks/*.sh", "tools/**/*.c"),
    *(".ci/*", ".github/workflows/*.yml", "Dockerfile", "compose.yaml", "justfile"),
]
COMMENT_MARK = r"(?m)^(?:///?|#|/\*|<!--) ?|(?:\*/|-->)$"
COMMENT = re.compile(r"(?m)^(?:(?:///?(?! swift-tools)|#(?=$| ))[^\n]*\n)+|^(?:/\*[\s\S]*?\*/|<!--[\s\S]*?-->)$")

# From `ane say` to sound by the default voice, hibari, on ONNX Runtime, in the order in which to read them. A test
# compares them with the files whose functions are called.
READING_PATH = {
    "The command": [
        "ane.cli",
        "ane.commands.say",
        "ane.commands.say_text",
        "ane.commands.speech_options",
        "ane.commands.say_report",
    ],
    "A model": ["ane.bundles.opening", "ane.bundles.family", "ane.bundles.bundle", "ane.bundles.manifest"],
    "A request": [
        "ane.speech.speaker",
        "ane.speech.request",
        "ane.speech.settings",
        "ane.speech.chunks",
        "ane.speech.stream",
        "ane.speech.ahead",
        "ane.speech.turns",
        "ane.speech.words",
        "ane.speech.text_notes",
    ],
    "Text to phonemes": [
        "ane.text",
        "ane.text.passages",
        "ane.text.splitter",
        "ane.text.english",
        "ane.text.rule",
        "ane.text.phonemes",
        "ane.text.phonemes.dictionary",
        "ane.models.phoneme_chunks",
    ],
    "Phonemes to sound": [
        "ane.models.hibari.family",
        "ane.models.hibari.config",
        "ane.models.hibari.settings",
        "ane.models.hibari.synthesizer",
        "ane.models.durations",
        "ane.models.vocoders.margins",
        "ane.models.vocoders.harmonic_noise",
        "ane.audio",
        "ane.audio.writer",
    ],
    "The backend": [
        "ane.backends.base",
        "ane.backends.rows",
        "ane.backends.choosing",
        "ane.backends.engines",
        "ane.backends.forwarding",
        "ane.backends.packaged.backend",
        "ane.backends.packaged.selection",
        "ane.backends.onnx.backend",
        "ane.backends.onnx.sessions",
        "ane.backends.onnx.providers",
    ],
}
# What Tortoise, on torch, has in place of text to phonemes to sound, and in place of ONNX Runtime.
TORTOISE_PATH = {
    "The backend": [
        "ane.bundles.weights",
        "ane.backends.torch.backend",
        "ane.backends.torch.device",
        "ane.backends.torch.threads",
    ],
    "Settings and steps": [
        "ane.models.tortoise.settings",
        "ane.models.tortoise.synthesizer",
        "ane.models.tortoise.pipeline",
    ],
    "Text to tokens": ["ane.models.tortoise.chunks", "ane.text.tokenizer", "ane.bundles.tokenizer_json"],
    "A voice": ["ane.models.tortoise.voices", "ane.voices.finding", "ane.voices.voice", "ane.audio.mel"],
    "Tokens to codes and latents": [
        "ane.models.tortoise.decoding",
        "ane.speech.lanes",
        "ane.speech.shared_steps",
        "ane.models.tortoise.sampling",
        "ane.backends.decoding",
        "ane.backends.torch.decoder",
        "ane.backends.torch.padded_products",
        "ane.backends.torch.kernel_decoder",
        "ane.backends.torch.kernels",
        "ane.backends.torch.linear",
    ],
    "Latents to a spectrogram": [
        "ane.models.tortoise.schedule",
        "ane.models.tortoise.diffusion",
        "ane.backends.denoising",
        "ane.backends.torch.frame_layers",
    ],
    "A spectrogram to sound": ["ane.models.tortoise.vocoding", "ane.backends.windows", "ane.audio.trimming"],
    "The networks": [
        "ane.models.tortoise.family",
        "ane.models.tortoise.networks",
        "ane.models.tortoise.networks.layers",
        "ane.models.tortoise.networks.autoregressive",
        "ane.models.tortoise.networks.clvp",
        "ane.models.tortoise.networks.conditioning",
        "ane.models.tortoise.networks.frames",
        "ane.models.tortoise.networks.diffusion_decoder",
        "ane.models.vocoders.source_filter",
        "ane.models.vocoders.convnext",
        "ane.models.vocoders.hifigan",
        "ane.models.tortoise.networks.univnet",
        "ane.models.tortoise.networks.hifigan",
    ],
}
PATHS = {"reading path": READING_PATH, "reading path of Tortoise": TORTOISE_PATH}

# Folders that a benchmark measures, by a word in its name, and those of all others.
MEASURED = {
    "bytes": ["converters"],
    "convert": ["converters"],
    "whisper": ["ane/backends", "ane/models/whisper"],
    **{model: ["ane/backends", f"ane/models/{model}"] for model in ("kokoro", "kitten", "fastspeech")},
}
OTHERS_MEASURED = ["ane/backends", "ane/models/tortoise", "ane/models/hibari", "ane/models/vocoders"]


def logical_lines(*files: Path) -> int:
    """Lines as Python's grammar counts them (NEWLINE tokens): no formatter changes their number."""
    return sum(map(_logical_lines, files))


@cache
def _logical_lines(file: Path) -> int:
    with file.open("rb") as source:
        return sum(token.type == tokenize.NEWLINE for token in tokenize.tokenize(source.readline))


def module_file(module: str) -> Path:
    path = ROOT / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def first_sentence(file: Path) -> str:
    """The first sentence of a Python module's docstring, or of the first comment in another file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        comment = ast.get_docstring(ast.parse(text)) or ""
    elif found := COMMENT.search(text):
        comment = re.sub(COMMENT_MARK, "", found[0])
    else:
        raise ValueError(f"{file} has no comment that says what the file is for")
    sentence = re.split(r"(?<!et al)(?<!\"\d)\.\s", " ".join(comment.partition("\n\n")[0].split()))[0]
    return sentence.rstrip(".:").replace("``", "`").replace("|", "\\|")


def every_file() -> list[str]:
    """The files in which a change may belong, but Python files that are empty or hold a docstring alone."""
    lines = ["| file | what it does |", "|---|---|"]
    files = (file for pattern in LISTED for file in ROOT.glob(pattern))
    for file in sorted(files, key=lambda file: (file.parent.relative_to(ROOT), file.name)):
        if file.suffix != ".py" or logical_lines(file) >= 3:
            lines.append(f"| `{file.relative_to(ROOT).as_posix()}` | {first_sentence(file)} |")
    return lines


def reading_path(path: dict[str, list[str]]) -> list[str]:
    lines, total = ["| file | lines | what it does |", "|---|---:|---|"], 0
    for part, modules in path.items():
        lines.append(f"| **{part}** | | |")
        for module in modules:
            file = module_file(module)
            count = logical_lines(file)
            total += count
            lines.append(f"| `{file.relative_to(ROOT).as_posix()}` | {count} | {first_sentence(file)} |")
    return [*lines, f"| **in all** | **{total}** | |"]


def results_table(directive: str) -> list[str]:
    """Columns and rows of a benchmark's own table, the spread of several runs left out where it is zero."""
    source, columns, *kept_rows = (part.strip() for part in directive.split(" | ", 2))
    name, index = source.split()
    table = json.loads((RESULTS / name).read_text(encoding="utf-8"))["tables"][int(index)]
    headings = dict(part.strip().split(" = ") for part in columns.split(";"))
    indices = [table["columns"].index(column) for column in headings]
    rows = table["rows"]
    if kept_rows:
        column, _, values = kept_rows[0].partition(" = ")
        rows = [row for row in rows if re.fullmatch(values, row[table["columns"].index(column)])]
    lines = [headings.values(), ["---"] * len(headings)]
    lines += [[row[index].removesuffix(" ±0%") for index in indices] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def results_named() -> dict[str, tuple[str, str]]:
    """Files of results that pages name → the commit that each measured ("" if it is not stated), and its date."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = re.findall(r"[\w-]+\.json", re.sub(r"(?ms)^<!-- results -->\n.*?^<!-- end -->", "", text))
    found = {}
    for file in sorted(RESULTS.glob("*.json")):
        machine = json.loads(file.read_text(encoding="utf-8")).get("machine")
        if file.name in named and isinstance(machine, dict):
            found[file.name] = machine.get("commit") or "", str(machine.get("date", ""))[:10]
    return found


def results_list() -> list[str]:
    return [
        "| result | commit | date |",
        "|---|---|---|",
        *(f"| `{name}` | {commit or 'not stated'} | {date} |" for name, (commit, date) in results_named().items()),
    ]


def outdated_results() -> list[str]:
    """A warning for each result that measured code which has changed since, as far as git knows its commit."""
    warnings = []
    for name, (commit, _) in results_named().items():
        folders = next((found for word, found in MEASURED.items() if word in name), OTHERS_MEASURED)
        command = ["git", "rev-list", "--count", f"{commit.rstrip('+')}..HEAD", "--", *folders]
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not commit or answer.returncode:
            warnings.append(
                f"{name}: its commit is not stated"
                if not commit
                else f"{name}: commit {commit} is not in this repository"
            )
        elif count := int(answer.stdout):
            warnings.append(f"{name}: {count} commits since {commit} changed {', '.join(folders)}")
    return warnings


def generated(page: str) -> str:
    """The page with its generated tables up to date."""

    def make(block: re.Match[str]) -> str:
        directive = block[1]
        lists = {
            "every file": every_file,
            "results": results_list,
            **{name: partial(reading_path, path) for name, path in PATHS.items()},
        }
        table = lists[directive]() if directive in lists else results_table(directive.removeprefix("table: "))
        return "\n".join([f"<!-- {directive} -->", "", *table, "", "<!-- end -->"])

    return BLOCK.sub(make, page)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="rewrite nothing; exit with 1 when a page is out of date")
    check = parser.parse_args().check
    stale = []
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = generated(before)
        if after != before:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(after, encoding="utf-8")
    for name in stale:
        print(f"{name} is out of date: run python docs/generate.py" if check else f"{name} rewritten")
    for warning in outdated_results() if check else ():
        print(f"warning: {warning}", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
