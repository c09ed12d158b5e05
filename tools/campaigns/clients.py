"""Let friendly and hostile clients use a server with few file descriptors, and measure what the friendly ones notice.

    python -m tools.campaigns clients --minutes 10 [-o RESULT.json]

Seven clients speak over HTTP and Wyoming, first alone. Then three hostile clients join them. These are slow, silent,
leaving, flooding, malformed or costly, withhold the end of a text, or send frames without content. Every sound is
compared with the sound of an idle server. At the end, the server gets SIGTERM while it speaks. The result is printed as
JSON and written to ``RESULTS``. Standard error gets a line for each of ``LIMITS``. The exit status is 1 if a limit is
exceeded.
"""

import argparse
import base64
import json
import os
import random
import socket
import struct
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.server.server_process import ServerProcess

DESCRIPTORS = 256
TEXTS = [
    "The wind blew over the hill.",
    "It rained in the valley, and we went home.",
    "Two boats? No, one [pause:200ms].",
]
LIMITS = {
    "health_p99_s": 0.5,
    "request_p95_ratio": 2.0,
    "memory_more_mib": 200,
    "descriptors_more": 2,
    "log_faults_mib": 1.0,
    "wrong_sounds": 0,
    "sigterm_s": 34.0,
}  # sigterm_s: the 30 s of the drain, and 4 s more
FRIENDLY, HOSTILE = 7, 3  # number of threads for friendly and for hostile clients
RESULTS = Path(__file__).parent / "results" / "clients.json"


class Campaign:
    """The server, the sound that it should make for each text, and the counts and times that the clients recorded."""

    def __init__(self, server: ServerProcess, seed: int):
        self.server, self.seed = server, seed
        self.wyoming_port = server.wyoming_port
        self.expected = {text: self.speak(text) for text in TEXTS}
        self.found: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.health: list[float] = []
        self.requests: list[float] = []  # seconds that each text took over HTTP
        self.until = 0.0

    def connect(self, port: int = 0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.server.port), 30)

    def speak(self, text: str) -> bytes:
        body = json.dumps({"model": "heart", "input": text, "response_format": "pcm"}).encode()
        request = urllib.request.Request(
            f"{self.server.address}/v1/audio/speech", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read()

    def run(self, seconds: float, hostile_clients: int) -> Counter[str]:
        """Run the clients for some seconds, and return the maximum of each resource that the server used."""
        self.until, peak = time.monotonic() + seconds, Counter(self.server.status())
        kinds = [(friendly, "friendly")] * FRIENDLY + [(hostile, "hostile")] * hostile_clients + [(watch, "watch")]
        threads = [
            threading.Thread(target=self.repeat, args=(kind, name, random.Random(self.seed + number)))
            for number, (kind, name) in enumerate(kinds)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < self.until:
            peak |= Counter(self.server.status())
            time.sleep(0.2)
        for thread in threads:
            thread.join()
        return peak

    def repeat(self, client: Callable[["Campaign", random.Random], None], name: str, rng: random.Random) -> None:
        while time.monotonic() < self.until:
            try:
                client(self, rng)
            except Exception as error:  # the server cuts hostile clients off, and may ask friendly ones to wait
                self.errors[f"{name}: {type(error).__name__} {getattr(error, 'code', '')}".strip()] += 1
                time.sleep(0.05)


def watch(campaign: Campaign, rng: random.Random) -> None:
    began = time.monotonic()
    try:
        with urllib.request.urlopen(f"{campaign.server.address}/health", timeout=20) as response:
            response.read()
    finally:
        campaign.health.append(time.monotonic() - began)
    time.sleep(0.05)


# Clients that speak


def friendly(campaign: Campaign, rng: random.Random) -> None:
    text = rng.choice(TEXTS)
    kind = rng.choice((by_http, by_http, by_wyoming))
    sound = kind(campaign, text)
    campaign.found["sounds"] += 1
    campaign.found["wrong_sounds"] += sound != campaign.expected[text]


def by_http(campaign: Campaign, text: str) -> bytes:
    began = time.monotonic()
    sound = campaign.speak(text)
    campaign.requests.append(time.monotonic() - began)
    return sound


def by_wyoming(campaign: Campaign, text: str) -> bytes:
    with campaign.connect(campaign.wyoming_port) as connection:
        file = connection.makefile("rb")
        connection.sendall(json.dumps({"type": "synthesize", "data": {"text": text}}).encode() + b"\n")
        sound = b""
        while True:
            event = json.loads(file.readline())
            file.read(event.get("data_length", 0))
            payload = file.read(event.get("payload_length", 0))
            if event["type"] == "audio-chunk":
                sound += payload
            elif event["type"] == "audio-stop":
                return sound
            elif event["type"] == "error":
                raise ConnectionError("refused")


# Clients that do harm


def hostile(campaign: Campaign, rng: random.Random) -> None:
    kind = rng.choice((slow, silent, leaving, flooding, malformed, costly, withholding, sending_nothing))
    campaign.found[f"hostile_{kind.__name__}"] += 1
    kind(campaign, rng)


def request_head(length: int, kind: str = "application/json", path: str = "/v1/audio/speech") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def slow(campaign: Campaign, rng: random.Random) -> None:
    """Send a request byte by byte, or do not read the sound that answers it."""
    with campaign.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        if rng.random() < 0.5:
            for sign in request_head(1000)[: rng.randrange(20, 100)]:
                connection.sendall(bytes([sign]))
                time.sleep(0.02)
        else:
            body = json.dumps({"model": "heart", "input": " ".join(TEXTS * 20)}).encode()
            connection.sendall(request_head(len(body)) + body)
            time.sleep(3)


def silent(campaign: Campaign, rng: random.Random) -> None:
    """Open more connections than the server has descriptors, and send nothing."""
    port = rng.choice((campaign.server.port, campaign.wyoming_port))
    held = []
    with suppress(OSError):
        for _ in range(DESCRIPTORS):
            held.append(campaign.connect(port))
    time.sleep(1)
    for connection in held:
        connection.close()


def leaving(campaign: Campaign, rng: random.Random) -> None:
    body = json.dumps({"model": "heart", "input": " ".join(TEXTS)}).encode()
    with campaign.connect() as connection:
        connection.sendall((request_head(len(body)) + body)[: rng.randrange(1, 600)])
        time.sleep(rng.random() * 0.3)


def flooding(campaign: Campaign, rng: random.Random) -> None:
    """Send pings and never read their answers, or send one request after another."""
    with campaign.connect() as connection:
        connection.settimeout(2)
        key = base64.b64encode(os.urandom(16)).decode()
        with suppress(OSError):
            if rng.random() < 0.5:
                connection.sendall(
                    f"GET /v1/audio/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                    f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                    "Sec-WebSocket-Version: 13\r\n\r\n".encode()
                )
                for _ in range(50):
                    connection.sendall((b"\x89\xfd" + bytes(4) + bytes(125)) * 1000)
            else:
                for _ in range(200):
                    connection.sendall(request_head(2) + b"{}")


def malformed(campaign: Campaign, rng: random.Random) -> None:
    frames = [
        os.urandom(rng.randrange(1, 5000)),
        b"[" * 100_000,
        b'{"type": "synthesize", "data": {"text": 1}}\n',
        request_head(26 << 20, "multipart/x"),
        request_head(26 << 20, "multipart/form-data; boundary=x", "/v1/audio/voices") + bytes(1 << 20),
        b"\x89" + struct.pack("!Q", 1 << 40),
        request_head(10) + b'{"input":1',
    ]
    with campaign.connect(rng.choice((campaign.server.port, campaign.wyoming_port))) as connection:
        connection.settimeout(1)
        with suppress(OSError):
            connection.sendall(rng.choice(frames))
            connection.recv(1000)


def costly(campaign: Campaign, rng: random.Random) -> None:
    """Ask for the most work that a small request can ask for."""
    lexicon = {"wind": "very " * 30}
    fields = rng.choice(
        (
            {"input": "A." + " [pause:60s]" * 10},
            {"input": "A." + " [pause:60s]" * 340},
            {"input": "wind " * 800, "lexicon": lexicon},
            {"input": "1" * 4000},
        )
    )
    body = json.dumps({"model": "heart", "response_format": rng.choice(("pcm", "mp3")), **fields}).encode()
    with campaign.connect() as connection:
        connection.settimeout(2)
        connection.sendall(request_head(len(body)) + body)
        with suppress(OSError):
            while connection.recv(1 << 16):
                pass


UPGRADE = (
    b"GET /v1/audio/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CHUNKED = (
    b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def withholding(campaign: Campaign, rng: random.Random) -> None:
    """Send a text in frames of four characters, with a bracket or tag that never ends, or start many texts."""
    start = b'{"type": "synthesize-start"}\n'
    if rng.random() < 0.3:
        held = [campaign.connect(campaign.wyoming_port) for _ in range(50)]
        for connection in held:
            connection.sendall(start)
        time.sleep(1)
        for connection in held:
            connection.close()
        return
    text = rng.choice(("(a ", '"a ', "<b a ", "... ", "[a ")) * 8000
    with campaign.connect(campaign.wyoming_port) as connection:
        connection.sendall(start)
        for at in range(0, len(text), 4):
            data = {"type": "synthesize-chunk", "data": {"text": text[at : at + 4]}}
            connection.sendall(json.dumps(data).encode() + b"\n")


def sending_nothing(campaign: Campaign, rng: random.Random) -> None:
    """Send empty continuations of a WebSocket message, or a body in parts of one byte."""
    with campaign.connect() as connection:
        connection.settimeout(2)
        with suppress(OSError):
            if rng.random() < 0.5:
                connection.sendall(UPGRADE + b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 200_000)
            else:
                connection.sendall(CHUNKED + b"1\r\n \r\n" * 200_000)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.campaigns clients")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    with ServerProcess(
        "--models", "heart", "--preload", "heart", "--wyoming-port", "0", "--add-voices", descriptors=DESCRIPTORS
    ) as server:
        server.wait_until_ready()
        result = measured(server, options)
    sys.stdout.write(text := json.dumps(result, indent=1) + "\n")
    options.output.write_text(text, encoding="utf-8")
    for name, most in LIMITS.items():
        sys.stderr.write(f"{name}: {result[name]} of at most {most}{' EXCEEDED' * (result[name] > most)}\n")
    return int(any(result[name] > most for name, most in LIMITS.items()))


def percentile(values: list[float], share: float) -> float:
    return round(sorted(values)[int(len(values) * share)], 4)


def measured(server: ServerProcess, options: argparse.Namespace) -> dict[str, Any]:
    campaign = Campaign(server, options.seed)
    for text in TEXTS * 3:  # uses everything once before the measurement
        campaign.speak(text), by_wyoming(campaign, text)
    before = server.status()
    campaign.run(min(60.0, 6 * options.minutes), 0)
    friendly_alone = percentile(campaign.requests, 0.95)
    campaign.health, campaign.requests = [], []
    peak = campaign.run(60 * options.minutes, HOSTILE)
    time.sleep(35)  # after the time that a silent client has, the server has dropped all clients
    after = server.status()
    assert all(campaign.speak(text) == sound for text, sound in campaign.expected.items())
    return {
        "minutes": options.minutes,
        "descriptors": DESCRIPTORS,
        "clients": FRIENDLY + HOSTILE,
        "health_requests": len(campaign.health),
        "health_p50_s": percentile(campaign.health, 0.5),
        "health_p99_s": percentile(campaign.health, 0.99),
        "health_worst_s": round(max(campaign.health), 4),
        "requests": len(campaign.requests),
        "request_p95_s": (slow := percentile(campaign.requests, 0.95)),
        "request_p95_without_hostile_s": friendly_alone,
        "request_p95_ratio": round(slow / friendly_alone, 2),
        "memory_mib": before["memory_kib"] >> 10,
        "memory_peak_mib": peak["memory_kib"] >> 10,
        "memory_more_mib": (after["memory_kib"] - before["memory_kib"]) >> 10,
        "descriptors_peak": peak["files"],
        "descriptors_more": after["files"] - before["files"],
        "threads": before["threads"],
        "threads_after": after["threads"],  # the threads of its pools stay
        **log_sizes(server.log_file.read_bytes().splitlines(keepends=True)),
        "sounds": campaign.found["sounds"],
        "wrong_sounds": campaign.found["wrong_sounds"],
        "sigterm_s": seconds_to_stop(campaign),
        "hostile": {kind: count for kind, count in sorted(campaign.found.items()) if kind.startswith("hostile")},
        "errors": dict(sorted(campaign.errors.items())),
    }


def seconds_to_stop(campaign: Campaign) -> float:
    """Return the seconds from SIGTERM to the end of a server that is speaking a long text to a client."""
    body = json.dumps({"model": "heart", "input": " ".join(TEXTS * 25), "response_format": "pcm"}).encode()
    with campaign.connect() as connection:
        connection.sendall(request_head(len(body)) + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        reading = threading.Thread(target=lambda: [None for _ in iter(lambda: connection.recv(1 << 16), b"")])
        reading.start()
        began = time.monotonic()
        assert campaign.server.stop() == 0
        reading.join()
        return round(time.monotonic() - began, 1)


def log_sizes(lines: list[bytes]) -> dict[str, float]:
    """Return the MiB of the log: the lines of requests for speech, and all other lines, which must not grow."""
    size = {True: 0, False: 0}
    for line in lines:
        size[b'"message": "request"' in line] += len(line)
    return {"log_requests_mib": round(size[True] / (1 << 20), 3), "log_faults_mib": round(size[False] / (1 << 20), 3)}
