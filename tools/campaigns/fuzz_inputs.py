"""Define the inputs of the campaign ``fuzz``: good inputs of every kind, their readers, and the ways to damage them."""

import asyncio
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import soundfile
import torch
from pydantic import ValidationError

from ane.audio.media import CoverImage, cover_size
from ane.audio.reader import read_audio
from ane.books.reading import read_document
from ane.bundles.bundle import Bundle
from ane.bundles.opening import demo_bundle
from ane.bundles.tokenizer_json import read_tokenizer
from ane.bundles.writing import write_bundle
from ane.models.fastspeech.checkpoints import import_fastspeech
from ane.server.errors import RefusedError
from ane.server.schemas import SpeechBody, StreamStart, StreamText
from ane.server.settings import ServerSettings
from ane.server.speech import Catalogue, read_client_lexicon
from ane.server.wyoming_protocol import LimitedReader, WyomingClient
from ane.text import normalise_english, read_passages, split
from ane.text.tokenizer import Tokenizer
from ane.text.user_lexicon import read_lexicon
from ane.voices import Voice, open_voice, save_voice
from tests.books.book_files import write_book
from tests.fastspeech_files import write_fastspeech

LONGEST = 20_000  # maximum bytes of an input, unless a good input is longer
SHORT = 60  # bytes of most texts, because most faults show in short texts too
VALUES = (None, True, -1, 0, 1 << 31, 1 << 64, 1e308, "", "\0", "../x", "x" * 300, [], {}, [[]], {"a": {}})
PIECES = (
    b"<",
    b">",
    b"&",
    b"[pause:60s]",
    b"<speak>",
    b"</speak>",
    b"[",
    b"]",
    b"{",
    b"}",
    b"\xff",
    b"\0",
    b"9" * 40,
    b"--",
    b"#",
    b"\n\n",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x90\xa2",
    b"1/2",
    b"$1,000.50",
    b"http://a.b",
    b"I'm",
    b'"',
)
SENTENCES = (
    "Dr. Smith paid $1,250.75 for 3.5 kg at 10:30 a.m. on 3 May 2024.\n\nCall (555) 123-4567, chapter XIV!",
    "He said: “Well—no.” [pause:0.5s] And {HH AH0} went on; 21 °C, 1/2, №5, e.g. that.",
    '<speak>One <break time="500ms"/> <say-as interpret-as="date">2024-05-03</say-as> <prosody rate="slow">two'
    '</prosody><sub alias="three">3</sub></speak>',
)
ELEMENTS = (
    '<break time="1s"/>',
    '<break strength="weak"/>',
    '<prosody rate="90%">a</prosody>',
    "<p><s>a</s> b.</p>",
    '<sub alias="b">a</sub>',
    '<phoneme ph="HH AH0">a</phoneme>',
    '<say-as interpret-as="time">1:30</say-as>',
    '<emphasis level="strong">a</emphasis>',
    '<mark name="a"/>',
    "<!-- a -->",
    '<voice name="a">b</voice>',
    '<say-as interpret-as="characters">ABC</say-as>',
    '<lang xml:lang="de">a</lang>',
    '<audio src="a"/>',
)


@dataclass(frozen=True)
class InputKind:
    """A kind of input, with good examples by file name.

    Attributes:
        inputs: The good inputs, each with its file name.
        read: Function that reads an input. It takes the file name and the bytes.
        sources: Folders and files of the code that reads these inputs.
        weight: Share of the time for this kind, relative to other kinds.
        shorten: Whether most inputs are parts of good inputs.
    """

    inputs: Sequence[tuple[str, bytes]]
    read: Callable[[str, bytes], object]
    sources: Sequence[str]
    weight: int = 1
    shorten: bool = False

    def input(self, corpus: Sequence[tuple[str, bytes]], rng: random.Random) -> tuple[str, bytes]:
        """Draw a good input, damage it, and return it."""
        name, data = rng.choice(corpus)
        other = rng.choice(corpus)[1]
        if self.shorten and rng.random() < 0.995:
            start = 0 if len(data) <= SHORT and rng.random() < 0.5 else rng.randrange(len(data) + 1)
            if not start:
                return name, mutated(data[:SHORT], rng, (other[:SHORT],), SHORT, 3)
            return name, mutated(data[start : start + rng.randrange(1, SHORT)], rng, (other[:SHORT],), SHORT, 3)
        return name, mutated_input(data, rng, (other,))


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes], longest: int = LONGEST, most: int = 8) -> bytes:
    """Make one to ``most`` changes to the bytes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(most) + 1):
        at, length = rng.randrange(len(changed) + 1), min(1 << rng.randrange(12), 4096)
        kind = rng.randrange(8)
        if kind == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = changed[at : at + length] * rng.choice((1, 2, 30))
        elif kind == 3:
            changed[at:at] = rng.choice(PIECES) * rng.choice((1, 1, 3, 200))
        elif kind == 4:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            changed[at : at + rng.choice((0, length))] = other[start : start + length]
        elif kind == 5:
            del changed[at:]
        elif kind == 6:
            changed[at : at + 4] = rng.choice((0, 1, 1 << 31, (1 << 32) - 1)).to_bytes(4, "little")
        elif at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed[: max(longest, len(data))])


def mutated_json(content: Any, rng: random.Random) -> Any:
    """Replace or remove a value at a random place in JSON."""
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
    """Change an input in ways that suit its format."""
    with suppress(zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError, OSError):
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
    """Return all kinds of input. Good inputs that need files are made in ``folder``."""

    def files(*names: str) -> list[tuple[str, bytes]]:
        return [(Path(name).name, (folder / name).read_bytes()) for name in names]

    def sounds() -> list[tuple[str, bytes]]:
        noise, made = 0.1 * np.random.default_rng(0).standard_normal(8000), []
        for form, subtype, suffix in (
            ("WAV", "PCM_16", "wav"),
            ("RF64", "PCM_16", "wav"),
            ("FLAC", "PCM_16", "flac"),
            ("OGG", "VORBIS", "ogg"),
            ("MP3", "MPEG_LAYER_III", "mp3"),
            ("AIFF", "PCM_16", "aiff"),
            ("CAF", "PCM_16", "caf"),
        ):
            content = io.BytesIO()
            soundfile.write(content, noise, 16000, subtype, format=form)
            made.append((f"a.{suffix}", content.getvalue()))
        return made

    def from_file(read: Callable[[Path], object]) -> Callable[[str, bytes], object]:
        def write_and_read(name: str, data: bytes) -> object:
            (inputs / name).write_bytes(data)
            return read(inputs / name)

        return write_and_read

    def text(data: bytes) -> str:
        return data.decode("utf-8", "replace")

    def spoken_text(name: str, data: bytes) -> None:
        split(text(data))
        normalise_english(text(data)[:5000])

    def body(name: str, data: bytes) -> None:
        try:
            read = SpeechBody.model_validate_json(data)
        except ValidationError as error:  # FastAPI would answer it
            raise RefusedError(error.errors()[0]["msg"].splitlines()[0]) from None
        read_client_lexicon(read)
        catalogue.voice(catalogue.model(read.model), read.voice_name)

    def message(name: str, data: bytes) -> None:
        try:
            (StreamStart if name == "start" else StreamText).model_validate_json(data)
        except ValidationError as error:  # ``ane.server.websocket.receive`` would answer it
            raise RefusedError(error.errors()[0]["msg"].splitlines()[0]) from None

    def events(name: str, data: bytes) -> None:
        loop.run_until_complete(answered(data))

    async def answered(data: bytes) -> None:
        reader, sent = asyncio.StreamReader(), bytearray()
        reader.feed_data(data)
        reader.feed_eof()
        writer = SimpleNamespace(
            write=sent.extend,
            writelines=lambda parts: [sent.extend(part) for part in parts],
            drain=lambda: asyncio.sleep(0),
        )
        client = WyomingClient(service, LimitedReader(reader, 1 << 20, 5.0), writer)  # type: ignore[arg-type]
        try:
            await client.serve(lambda: None, lambda: None)
        except (asyncio.IncompleteReadError, ConnectionResetError):  # the connection ends without an answer
            raise RefusedError("ended") from None
        if b'"internal' in sent:
            raise AssertionError(sent.decode("utf-8", "replace")[-300:])

    def speak(request: object, kind: str) -> None:
        raise RefusedError("not spoken here")

    inputs, loop = folder / "inputs", asyncio.new_event_loop()
    inputs.mkdir()
    catalogue = Catalogue(ServerSettings(models=("heart",)))
    service: Any = SimpleNamespace(
        settings=catalogue.settings,
        catalogue=catalogue,
        speak=speak,
        check_text=len,
        check_stream=lambda length: None,
        count_refusal=lambda kind, status: None,
    )

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
    bundle = write_bundle(import_fastspeech(folder / "model.pt"), folder / "bundle").path
    write_book(folder / "book.epub", {"a.xhtml": "<h1>One</h1><p>Text<a href='#n'>1</a>.</p>", "b.xhtml": "<p>2.</p>"})
    (folder / "words.tsv").write_text("Smith\tSmyth\nlead\tled\texact\tnoun\n")
    page = f"<title>T</title><h1>A</h1><ul><li>{SENTENCES[0]}</ul><table><tr><td>1<td>2</table><pre>code</pre>"
    for name, content in (
        ("a.md", f"---\ntitle: T\n---\n# One\n\n{SENTENCES[1]}[^1]\n\n[^1]: A note.\n"),
        ("a.html", page),
        ("a.txt", f"CHAPTER I\n\n{SENTENCES[0]}\n\n* * *\n\n- one\n- two\n"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,500\n<i>Hello.</i>\n\n2\n00:00:05,000 --> 00:00:07,0\nYes.\n"),
    ):
        (folder / name).write_text(content)
    sentences = [("a", sentence.encode()) for sentence in SENTENCES]
    elements = [("a", f"<speak>{element}</speak>".encode()) for element in ELEMENTS]
    image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(40), b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(60)
    good = {
        "model": "heart",
        "input": "Hm.",
        "voice": "default",
        "response_format": "opus",
        "speed": 1.5,
        "seed": 1,
        "lexicon": {"wind": "wynd"},
        "stream_format": "sse",
        "word_times": True,
    }
    bodies = [("body", json.dumps(value).encode()) for value in (good, {**good, "voice": {"id": "a"}})]
    messages = [
        ("start", json.dumps({"type": "start", "model": "heart", "lexicon": {"a": "b"}}).encode()),
        ("text", b'{"type": "text", "text": "Hello"}'),
        ("text", b'{"type": "end"}'),
    ]
    wyoming = [
        ("events", b"".join(json.dumps({"type": kind, "data": data}).encode() + b"\n" for kind, data in each))
        for each in (
            [("describe", {}), ("ping", {"text": "a"})],
            [("synthesize", {"text": "Hello.", "voice": {"name": "heart/default"}})],
            [("synthesize-start", {"voice": {"name": "x"}}), ("synthesize-chunk", {"text": "a"})],
        )
    ]
    wyoming.append(("events", b'{"type": "synthesize", "data_length": 14}\n{"text": "Hm."}{"type": "describe"}\n'))
    return {
        "text": InputKind(
            sentences,
            spoken_text,
            ("ane/text/english.py", "ane/text/splitter.py", "ane/text/clauses.py"),
            3,
            shorten=True,
        ),
        "markup": InputKind(
            sentences + elements,
            lambda name, data: read_passages(text(data)),
            ("ane/text/passages.py", "ane/text/ssml.py"),
            6,
            shorten=True,
        ),
        "lexicons": InputKind(files("words.tsv"), from_file(read_lexicon), ("ane/text/user_lexicon.py",)),
        "documents": InputKind(
            files("book.epub", "a.md", "a.html", "a.txt", "a.srt"),
            from_file(read_document),
            (
                "ane/books/epub.py",
                "ane/books/html_reader.py",
                "ane/text/tags.py",
                "ane/text/html_blocks.py",
                "ane/text/markdown.py",
                "ane/books/plain_text.py",
                "ane/books/reading.py",
            ),
        ),
        "manifests": InputKind(files("bundle/bundle.json"), from_file(manifest), ("ane/bundles/manifest.py",)),
        "tokenizers": InputKind(
            [("t.json", (demo_bundle() / "tokenizer.json").read_bytes())],
            from_file(tokenizer),
            ("ane/text/tokenizer.py",),
        ),
        "checkpoints": InputKind(
            files("model.pt", "old.pth"),
            from_file(import_fastspeech),
            ("ane/bundles/torch_checkpoint.py", "ane/bundles/torch_checkpoint.py"),
        ),
        "voices": InputKind(
            files("ann.safetensors", "ann.pth", "clips.pth", "old.pth"),
            from_file(lambda path: read_voice(open_voice("ann", (path,)))),
            ("ane/voices/voice.py", "ane/bundles/torch_checkpoint.py"),
        ),
        "audio": InputKind(sounds(), from_file(read_audio), ("ane/audio/reader.py", "ane/audio/lengths.py")),
        "covers": InputKind(
            [("a.png", image[0]), ("a.jpg", image[1])],
            lambda name, data: cover_size(CoverImage(data, "image/png" if name == "a.png" else "image/jpeg")),
            ("ane/audio/media.py",),
        ),
        "bodies": InputKind(bodies, body, ("ane/text/user_lexicon.py",), 3),
        "messages": InputKind(messages, message, (), 3),
        "wyoming": InputKind(wyoming, events, ("ane/server/wyoming_protocol.py",)),
    }


def read_voice(voice: Any) -> None:
    if not isinstance(voice, Voice):
        voice.read()
