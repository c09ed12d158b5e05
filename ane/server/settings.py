"""Define the settings of a server, and the limits on its clients."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt

from ane.bundles.opening import DEFAULT_BUNDLE
from ane.speech.request import TextLimits
from ane.system.checked import validated
from ane.system.errors import UserError

# the names of voices that OpenAI's clients know
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
HOST = re.compile(r"[\w.-]+|[0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*", re.ASCII)  # a name, an IPv4 address or an IPv6 address
# browsers leave out the usual port
ORIGIN = re.compile(
    r"(?!https://.*:443\Z|http://.*:80\Z)(?:null|[a-z][a-z0-9+.-]*://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d+)?)", re.ASCII
)
TRANSCRIPTIONS, NEW_VOICES = 2, 1  # how many transcriptions, and how many new voices, may be in work at the same time


def limit(default: float, help: str, metavar: str = "N") -> Any:
    """Declare a field of ``Limits``, which is also a flag of `ane serve`.

    Args:
        default: Default value.
        help: Help text.
        metavar: Placeholder in the help. With "MB", users give megabytes, and the field is a number of bytes.
    """
    return Field(default, gt=0, description=help, json_schema_extra={"metavar": metavar})


@validated
class Limits(TextLimits):
    """Limits on one client, over all protocols, and on all clients together. Too many requests get status 429.

    Attributes:
        decoder_seconds: Maximum seconds for the process that decodes a recording.
        decoder_memory: Maximum bytes of memory for the process that decodes a recording.
    """

    silence: float = limit(600.0, "total length of the pauses in a text", "S")
    characters: int = limit(4096, "characters in a text, or in one message of a text that arrives in several")
    stream_characters: int = limit(100_000, "characters in a whole text that arrives in several messages")
    body: int = limit(1 << 20, "size of a request without files", "MB")
    upload: int = limit(25 << 20, "size of a request with files", "MB")
    files: int = limit(256 << 20, "size of all files together that requests have on disk", "MB")
    clip_seconds: float = limit(1800.0, "length of a recording to transcribe", "S")
    uploads: int = limit(8, "files that may wait for their turn")
    requests: int = limit(256, "requests that may run at once")
    connections: int = limit(1024, "open connections")
    sound_ahead: float = limit(10.0, "sound that may wait for a slow client before its request pauses", "S")
    seconds: float = limit(600.0, "time for a request", "S")
    idle: float = limit(
        30.0, "time for a client to send its headers, to send more of its body, or to take more sound", "S"
    )
    drain: float = limit(30.0, "time for requests to end after SIGTERM", "S")
    decoder_seconds: PositiveFloat = 60.0
    decoder_memory: PositiveInt = 2 << 30


@dataclass(frozen=True)
class ServerSettings:
    """The settings with which a server starts.

    Attributes:
        models: Names of the bundles to speak with. OpenAI's model names mean the first bundle.
        transcriber: Name of the Whisper bundle that transcribes. "" means that the server does not transcribe.
        host: Address to listen on.
        port: Port to listen on.
        wyoming_port: Port for the Wyoming protocol. ``None`` means that the server does not offer it.
        wyoming_host: Address to listen on for the Wyoming protocol. "" means ``host``.
        backend: Backend, as for ``ane.backends.load_backend``.
        precision: Precision, as for ``ane.backends.load_backend``.
        threads: Number of CPU threads, as for ``ane.backends.load_backend``.
        calls: Number of network calls that run at once and share ``threads`` (see ``calls_at_a_time``).
        lanes: Number of candidates to sample at once, over all requests.
        preload: Names of models to load at the start.
        memory: Maximum size of all loaded bundles together, in bytes on disk. ``None`` means no limit.
        idle_release: Seconds after which an unused model is released. ``None`` means never.
        voices: Additional names for voices, and the voice that each name stands for.
        ignore_instructions: Whether to ignore the field ``instructions``. If not, a request with this field is an
            error.
        token: Bearer token that clients must send. "" means that only clients on the same machine get answers.
        hosts: Names by which clients may call the server, in lower case. () allows any name. But if ``host`` is an
            address that only this machine can reach, () allows only this machine's own names.
        base_path: Path under which a proxy serves the server, such as /tts, or "". The proxy may pass the path on to
            the server, or may remove it.
        origins: Origins of web pages that may use the server.
        add_voices: Whether clients may add voices.
        log_texts: Whether the log contains the texts of requests.
        limits: Limits on the clients.
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
        # [::1], as in a URL, means ::1
        object.__setattr__(self, "hosts", tuple(re.sub(r"^\[(.*:.*)\]$", r"\1", name) for name in self.hosts))
        if not self.models:
            raise UserError("models must name at least one bundle", "models")
        if self.base_path and not BASE_PATH.fullmatch(self.base_path):
            raise UserError(
                f"base_path must be a path such as /tts, without a slash at the end, got {self.base_path!r}",
                "base_path",
            )
        for name, form, wanted in (
            ("hosts", HOST, "host names such as tts.example, without http:// or a port"),
            (
                "origins",
                ORIGIN,
                "origins such as https://app.example, with http:// or https://, without a path or usual port",
            ),
        ):
            if wrong := [value for value in getattr(self, name) if not form.fullmatch(value)]:
                raise UserError(f"{name} must be {wanted}, got {', '.join(wrong)}", name)
        unknown = [name for name in self.preload if name not in (*self.models, self.transcriber)]
        if unknown:
            raise UserError(f"preload must name models of this server, got {', '.join(unknown)}", "preload")
