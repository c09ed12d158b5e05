"""Feed damaged and hostile inputs to everything that reads what others made.

    python -m tests.campaigns fuzz --minutes 3                  all kinds in turn; writes results/fuzz.json
    python -m tests.campaigns fuzz --minutes 10 --only voices   one kind

Good inputs are mutated: bytes and parts of text changed, removed, repeated, exchanged; values of JSON replaced; parts
of archives damaged. Each must be read, or refused by a UserError in one line, within ``SECONDS`` of CPU time and within
``MEMORY`` more than the process had. Every kind runs in a process of its own; one that dies is a failure with the input
that it was at.
"""

import argparse
import base64
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from ane.audio.reader import read_audio
from ane.books.document import CoverImage
from ane.books.media_writer import cover_size
from ane.books.reading import read_document
from ane.bundles.bundle import Bundle, write_bundle
from ane.bundles.model import read_tokenizer
from ane.bundles.opening import demo_bundle
from ane.models.fastspeech.checkpoints import FastSpeechCheckpoint
from ane.system.errors import UserError
from ane.text import normalise_english, read_passages, split
from ane.text.tokenizer import Tokenizer
from ane.text.user_lexicon import read_lexicon
from ane.voices import Voice, open_voice, save_voice
from tests.books.epub_files import write_book
from tests.fastspeech_files import write_fastspeech

RESULTS = Path(__file__).parent / "results" / "fuzz.json"
SECONDS = 5                 # that an input may take
MEMORY = 1 << 30            # bytes that it may take
LONGEST = 20_000            # bytes of an input, unless a good one is longer
HANGS = 120                 # seconds of any time after which an input is taken to hang: other work has the machine too
KEPT = 5                    # failures of a kind that are stored with their input
VALUES = (None, True, -1, 0, 1 << 31, 1 << 64, 1e308, "", "\0", "../x", "x" * 300, [], {}, [[]], {"a": {}})
PIECES = (b"<", b">", b"&", b"[pause:60s]", b"<speak>", b"</speak>", b"[", b"]", b"{", b"}", b"\xff", b"\0", b"9" * 40,
          b"--", b"#", b"\n\n", b"\xe2\x80\xae", b"\xf0\x9f\x90\xa2", b"1/2", b"$1,000.50", b"http://a.b", b"I'm", b'"')
SENTENCES = ("Dr. Smith paid $1,250.75 for 3.5 kg at 10:30 a.m. on 3 May 2024.\n\nCall (555) 123-4567, chapter XIV!",
             "He said: “Well—no.” [pause:0.5s] And {HH AH0} went on; 21 °C, 1/2, №5, e.g. that.",
             '<speak>One <break time="500ms"/> <say-as interpret-as="date">2024-05-03</say-as> <prosody rate="slow">two'
             '</prosody><sub alias="three">3</sub></speak>')


@dataclass(frozen=True)
class InputKind:
    """Good inputs of a kind by file name, what reads one from a file of that name, and whether they are JSON."""

    inputs: Sequence[tuple[str, bytes]]
    read: Callable[[Path], object]


class TooSlowError(Exception):
    """An input took longer than ``SECONDS``."""


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The bytes with one to eight changes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 9)):
        at, length = rng.randrange(len(changed) + 1), min(1 << rng.randrange(12), 4096)
        kind = rng.randrange(8)
        if kind == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif kind == 1:
            del changed[at:at + length]
        elif kind == 2:
            changed[at:at] = changed[at:at + length] * rng.choice((1, 2, 30))
        elif kind == 3:
            changed[at:at] = rng.choice(PIECES) * rng.choice((1, 1, 3, 200))
        elif kind == 4:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            changed[at:at + rng.choice((0, length))] = other[start:start + length]
        elif kind == 5:
            del changed[at:]
        elif kind == 6:
            changed[at:at + 4] = rng.choice((0, 1, 1 << 31, (1 << 32) - 1)).to_bytes(4, "little")
        elif at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed[:max(LONGEST, len(data))])


def mutated_json(content: Any, rng: random.Random) -> Any:
    """JSON with a value at a random place replaced or removed."""
    if isinstance(content, dict | list) and content and rng.random() < 0.85:
        key = rng.choice(list(content) if isinstance(content, dict) else range(len(content)))
        copy = content.copy()
        if rng.random() < 0.1:
            del copy[key]
        else:
            copy[key] = mutated_json(content[key], rng)
        return copy
    return rng.choice(VALUES)


def mutated_input(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """An input of any format with changes that its format makes worth while."""
    if data.startswith(b"PK") and rng.random() < 0.8:
        made = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as copy:
            chosen = rng.choice(archive.namelist())
            for name in archive.namelist():
                part = archive.read(name)
                copy.writestr(name, mutated(part, rng, others) if name == chosen else part)
        return made.getvalue()
    if data.startswith(b"{") and rng.random() < 0.9:
        return json.dumps(mutated_json(json.loads(data), rng)).encode("utf-8", "surrogatepass")
    return mutated(data, rng, others)


def kinds(folder: Path) -> dict[str, InputKind]:
    """All kinds. ``folder`` is for the good inputs."""
    def files(*names: str) -> list[tuple[str, bytes]]:
        return [(Path(name).name, (folder / name).read_bytes()) for name in names]

    def sounds() -> list[tuple[str, bytes]]:
        noise, made = 0.1 * np.random.default_rng(0).standard_normal(8000), []
        for form, subtype, suffix in (("WAV", "PCM_16", "wav"), ("RF64", "PCM_16", "wav"), ("FLAC", "PCM_16", "flac"),
                                      ("OGG", "VORBIS", "ogg"), ("MP3", "MPEG_LAYER_III", "mp3"),
                                      ("AIFF", "PCM_16", "aiff"), ("CAF", "PCM_16", "caf")):
            content = io.BytesIO()
            soundfile.write(content, noise, 16000, subtype, format=form)
            made.append((f"a.{suffix}", content.getvalue()))
        return made

    def text(path: Path) -> str:
        return path.read_bytes().decode("utf-8", "replace")

    def spoken_text(path: Path) -> None:
        split(text(path))
        normalise_english(text(path)[:5000])

    def tokenizer(path: Path) -> None:
        Tokenizer(read_tokenizer(path)).speakable_ids("hello there")

    def manifest(path: Path) -> None:
        (bundle / "bundle.json").write_bytes(path.read_bytes())
        opened = Bundle(bundle)
        for network in opened.networks:
            opened.tensors(network)

    voice = Voice(np.zeros((1, 64), np.float32), np.zeros((1, 64), np.float32), "ann")
    for suffix in (".safetensors", ".pth"):
        save_voice(folder / f"ann{suffix}", voice)
    torch.save([torch.zeros(1, 4000), torch.zeros(1, 30000)], folder / "clips.pth")
    torch.save({"a": torch.zeros(3), "b": [1, "x"]}, folder / "old.pth", _use_new_zipfile_serialization=False)
    write_fastspeech(folder / "model.pt")
    bundle = write_bundle(FastSpeechCheckpoint(folder / "model.pt"), folder / "bundle").path
    write_book(folder / "book.epub", {"a.xhtml": "<h1>One</h1><p>Text<a href='#n'>1</a>.</p>", "b.xhtml": "<p>2.</p>"})
    (folder / "words.tsv").write_text("Smith\tSmyth\nlead\tled\texact\tnoun\n")
    page = f"<title>T</title><h1>A</h1><ul><li>{SENTENCES[0]}</ul><table><tr><td>1<td>2</table><pre>code</pre>"
    for name, content in (("a.md", f"---\ntitle: T\n---\n# One\n\n{SENTENCES[1]}[^1]\n\n[^1]: A note.\n"),
                          ("a.html", page), ("a.txt", f"CHAPTER I\n\n{SENTENCES[0]}\n\n* * *\n\n- one\n- two\n"),
                          ("a.srt", "1\n00:00:01,000 --> 00:00:02,500\n<i>Hello.</i>\n\n"
                                    "2\n00:00:05,000 --> 00:00:07,0\nYes.\n")):
        (folder / name).write_text(content)
    sentences = [("a", sentence.encode()) for sentence in SENTENCES]
    image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40), b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(60)
    return {
        "text": InputKind(sentences, spoken_text),
        "markup": InputKind(sentences, lambda path: read_passages(text(path))),
        "lexicons": InputKind(files("words.tsv"), read_lexicon),
        "documents": InputKind(files("book.epub", "a.md", "a.html", "a.txt", "a.srt"), read_document),
        "manifests": InputKind(files("bundle/bundle.json"), manifest),
        "tokenizers": InputKind([("t.json", (demo_bundle() / "tokenizer.json").read_bytes())], tokenizer),
        "checkpoints": InputKind(files("model.pt", "old.pth"), lambda path: FastSpeechCheckpoint(path).check()),
        "voices": InputKind(files("ann.safetensors", "ann.pth", "clips.pth", "old.pth"),
                            lambda path: read_voice(open_voice("ann", (path,)))),
        "audio": InputKind(sounds(), read_audio),
        "covers": InputKind([("a.png", image[0]), ("a.jpg", image[1])], lambda path: cover_size(CoverImage(
            path.read_bytes(), "image/png" if path.suffix == ".png" else "image/jpeg"))),
    }


def read_voice(voice: Any) -> None:
    if not isinstance(voice, Voice):
        voice.read()


def stored(name: str, data: bytes) -> dict[str, str]:
    """An input as it is kept in the results."""
    return {"file": name, "base64": base64.b64encode(data).decode()}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def attack(kind: InputKind, folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Feed inputs for that long; runs in a process of its own."""
    def too_slow(*_: object) -> None:
        raise TooSlowError

    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, too_slow)
    limit = resident() + MEMORY
    space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + 2 * MEMORY, space + 2 * MEMORY))
    rng, others, until = random.Random(seed), [data for _, data in kind.inputs], time.monotonic() + seconds
    count = refused = 0
    failures: dict[str, dict[str, Any]] = {}
    while time.monotonic() < until:
        name, data = rng.choice(kind.inputs)
        data = mutated_input(data, rng, others)
        path = folder / name
        path.write_bytes(data)
        wrong, began = "", time.process_time()
        try:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.setitimer(signal.ITIMER_REAL, HANGS)
            kind.read(path)
        except UserError as error:
            refused += 1
            wrong = "its error has several lines" if "\n" in str(error) else ""
        except TooSlowError:
            wrong = f"it takes more than {SECONDS} s"
        except BaseException as error:      # a panic of Rust code is no Exception
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__} in {Path(where.filename).name}, line {where.lineno}: {str(error)[:200]}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        count += 1
        if resident() > limit:
            wrong = wrong or f"it takes more than {MEMORY >> 20} MB"
        if time.process_time() - began > SECONDS:
            wrong = wrong or f"it takes more than {SECONDS} s"
        if wrong and len(failures) < KEPT:
            failures.setdefault(wrong.partition(":")[0], {"wrong": wrong, **stored(name, data)})
    return {"inputs": count, "refused": refused, "failures": list(failures.values())}


def in_process(work: Callable[[], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The result of ``work`` in a forked process; a failure with its last input if it dies."""
    result = folder / "result.json"
    child = os.fork()
    if not child:
        null = os.open(os.devnull, os.O_WRONLY)     # decoders print what they dislike
        os.dup2(null, 2)
        result.write_text(json.dumps(work()))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        return json.loads(result.read_text())
    last = max((path for path in folder.iterdir() if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    return {"inputs": 1, "refused": 0, "failures": [
        {"wrong": f"the process ended with status {status}", **stored(last.name, last.read_bytes())}]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.campaigns fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", metavar="KIND")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    found = {}
    with tempfile.TemporaryDirectory() as root:
        os.environ["ANE_HOME"] = f"{root}/home"
        made = kinds(Path(root))
        chosen = {name: kind for name, kind in made.items() if args.only in (None, name)}
        for name, kind in chosen.items():
            folder = Path(root) / f"inputs-{name}"
            folder.mkdir()
            seconds = 60 * args.minutes / len(chosen)
            found[name] = in_process(lambda: attack(kind, folder, seconds, args.seed), folder)      # noqa: B023
    result = {"minutes": args.minutes, "seed": args.seed, "seconds_allowed": SECONDS, "megabytes_allowed": MEMORY >> 20,
              "inputs": sum(each["inputs"] for each in found.values()), "kinds": found}
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, each in found.items():
        sys.stdout.write(f"{name}: {each['inputs']} inputs, {each['refused']} refused\n")
        sys.stdout.writelines(f"  {failure['wrong']} ({failure['file']})\n" for failure in each["failures"])
    return 1 if any(each["failures"] for each in found.values()) else 0
