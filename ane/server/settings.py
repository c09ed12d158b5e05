"""The settings of a server."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt

from ane.bundles.opening import DEFAULT_BUNDLE
from ane.speech.request import TextLimits
from ane.system.checked import validated
from ane.system.errors import UserError

# the names that OpenAI's clients know
OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "onyx",
    "nova",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
)
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
OPENAI_TRANSCRIBERS = ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe")
BASE_PATH = re.compile(r"(?:/[\w.~-]+)+", re.ASCII)
TRANSCRIPTIONS, NEW_VOICES = 2, 1  # that are worked on at a time


def limit(default: float, help: str, metavar: str = "N") -> Any:
    """A field of ``Limits``, which is also an option of `ane serve`; ``metavar`` MB: of a number of bytes."""
    return Field(default, gt=0, description=help, json_schema_extra={"metavar": metavar})


@validated
class Limits(TextLimits):
    """What one client may ask for, in any protocol, and all of them together. Requests beyond a number of them get
    status 429.

    Attributes:
        decoder_seconds, decoder_memory: of the process that decodes a recording, and its memory in bytes.
    """

    silence: float = limit(600.0, "pauses of a text together", "S")
    characters: int = limit(4096, "characters of a text, or of a piece of one that arrives in pieces")
    stream_characters: int = limit(100_000, "characters of a text that arrives in pieces")
    body: int = limit(1 << 20, "size of a request", "MB")
    upload: int = limit(25 << 20, "size of a request with files", "MB")
    files: int = limit(256 << 20, "size of all requests with files at a time, which are held on disk", "MB")
    clip_seconds: float = limit(1800.0, "length of a recording to transcribe", "S")
    uploads: int = limit(8, "files that wait to be worked on")
    requests: int = limit(256, "requests at a time")
    connections: int = limit(1024, "open connections")
    sound_ahead: float = limit(10.0, "sound that waits for a client that reads slowly, before its request pauses", "S")
    seconds: float = limit(600.0, "time of a request", "S")
    idle: float = limit(
        30.0, "time in which a client must send its headers, the next bytes of its body, or take what is sent", "S"
    )
    drain: float = limit(30.0, "time that requests have to end after SIGTERM", "S")
    decoder_seconds: PositiveFloat = 60.0
    decoder_memory: PositiveInt = 2 << 30


@dataclass(frozen=True)
class ServerSettings:
    """How a server is started.

    Attributes:
        models: names of the bundles that it speaks with; the first is what OpenAI's model names mean.
        transcriber: name of the Whisper bundle of transcriptions, if any.
        backend, precision, threads: of ``ane.backends.load_backend``.
        calls: network calls that run at a time, which share the ``threads`` (``calls_at_a_time``).
        lanes: candidates sampled at a time, over all requests.
        preload: names of models that are loaded at the start. memory: bytes that loaded bundles may have on disk
            together (None: no limit). idle_release: seconds after which an unused model is released (None: never).
        voices: voice names of clients → voices. ignore_instructions: whether ``instructions`` are ignored, not refused.
        wyoming_host: "": that of ``host``.
        token: what clients must send as a bearer token; "": nothing, and only clients of the same machine are answered.
        base_path: Path under which a proxy serves the server, such as /tts; "": none. The proxy may pass it on or not.
        hosts: names by which clients may call the server, in lower case; (): any, or those of the machine itself if
            ``host`` is one of them. origins: of web pages that may use the server.
        add_voices: whether clients may add voices. log_texts: whether the log has the texts that are spoken.
    """

    models: tuple[str, ...] = (DEFAULT_BUNDLE,)
    transcriber: str = ""
    host: str = "127.0.0.1"
    port: int = 8880
    wyoming_port: int | None = None
    wyoming_host: str = ""
    backend: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    calls: int | None = None
    lanes: int = 16
    preload: tuple[str, ...] = ()
    memory: int | None = None
    idle_release: float | None = None
    voices: Mapping[str, str] = field(default_factory=dict)
    ignore_instructions: bool = False
    token: str = ""
    hosts: tuple[str, ...] = ()
    base_path: str = ""
    origins: tuple[str, ...] = ()
    add_voices: bool = False
    log_texts: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("models must name at least one bundle", "models")
        if self.base_path and not BASE_PATH.fullmatch(self.base_path):
            raise UserError(
                f"base_path must be a path such as /tts, without a slash at its end, got {self.base_path!r}",
                "base_path",
            )
        unknown = [name for name in self.preload if name not in (*self.models, self.transcriber)]
        if unknown:
            raise UserError(f"preload must name models that are served, got {', '.join(unknown)}", "preload")
