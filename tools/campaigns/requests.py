"""Send thousands of requests that no ordinary client would send. The server must survive, and keep nothing of them.

    python -m tools.campaigns requests [--requests 10000] [--leaving 1000] [--kinds KIND …] [-o RESULT.json]

schemathesis makes requests from the server's own schema, and hypothesis makes bodies and Wyoming frames. Clients leave
at random moments. At the end, the server must speak as before, with no more files, threads and requests than before,
and hardly more memory. Otherwise, the exit status is 1, and the output says what failed.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from ane.system.machine import usable_cores
from tests.server.server_process import ServerProcess
from tests.server.speech_requests import TOKEN, active, post

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
TEXT = "The wind blew over the hill."
SETTINGS = {"deadline": None, "database": None, "phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}
MEMORY_SHARE = 1.15  # maximum ratio of memory at the end to memory after one request of every kind
MARGINS = {"files": 1, "threads": 4}  # allowed increase. asyncio starts the threads of its pool one by one

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
FIELDS = (
    "model",
    "input",
    "voice",
    "instructions",
    "response_format",
    "speed",
    "stream_format",
    "seed",
    "preset",
    "lexicon",
)
VALID = {"model": "heart", "input": "Hm.", "voice": "default", "response_format": "opus"}
# a request that is valid except for one or two of its fields
BODIES = st.builds(
    lambda changes: json.dumps({**VALID, **changes}).encode(),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2),
) | st.binary(max_size=400)
EVENTS = st.sampled_from(
    ("describe", "synthesize", "synthesize-start", "synthesize-chunk", "synthesize-stop", "ping", "transcribe", "")
)
FRAMES = st.builds(
    lambda kind, data, more, payload: (
        json.dumps({"type": kind, **more, "data": data, "payload_length": len(payload)}).encode() + b"\n" + payload
    ),
    EVENTS,
    st.dictionaries(st.sampled_from(("text", "voice", "name")), JSON, max_size=3),
    st.dictionaries(st.sampled_from(("data_length", "payload_length", "type", "version")), JSON, max_size=2),
    st.binary(max_size=40),
) | st.binary(max_size=200)


class Failures(list):
    """A list of sentences that say what failed."""

    def check_answer(self, status: int, body: bytes, what: str) -> None:
        if status >= 500 and status not in (503, 504):
            self.append(f"{what}: status {status}")
        if b"Traceback" in body:
            self.append(f"{what}: a traceback")
        if status >= 400 and "message" not in json.loads(body).get("error", {}):
            self.append(f"{what}: an error in another shape: {body[:200]!r}")


def fuzz_schema(server: ServerProcess, count: int, failures: Failures, statuses: Counter) -> None:
    """Send requests that schemathesis makes from the schema, and let it compare the answers with the schema.

    Operations without parameters are sent once.
    """
    import schemathesis
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [content_type_conformance, response_schema_conformance, status_code_conformance]
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json", headers=HEADERS)
    operations = [result.ok() for result in schema.get_all_operations()]
    for operation in operations:

        @hypothesis.settings(max_examples=count // 4, **SETTINGS)
        @given(case=operation.as_strategy())
        def send_case(case: Any) -> None:
            response = case.call(headers=HEADERS, timeout=120)
            statuses[response.status_code] += 1
            try:
                case.validate_response(response, checks=checks)
            except BaseExceptionGroup as error:  # the errors that schemathesis found
                failures.append(f"{case.method} {case.path}: {str(error)[:400]}")
            if response.status_code >= 400:
                failures.check_answer(response.status_code, response.content, f"{case.method} {case.path}")

        send_case()


def fuzz_bodies(server: ServerProcess, count: int, failures: Failures, statuses: Counter) -> None:
    @hypothesis.settings(max_examples=count, **SETTINGS)
    @given(body=BODIES)
    def send_body(body: bytes) -> None:
        status, answer = post(server, body=body)
        statuses[status] += 1
        if status != 200:
            failures.check_answer(status, answer, repr(body[:200]))

    send_body()


def fuzz_wyoming(server: ServerProcess, count: int, failures: Failures, statuses: Counter) -> None:
    async def send_frames(frames: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.wyoming_port)
        try:
            writer.write(b"".join(frames))
            await writer.drain()
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 60)
            if b"Traceback" in answer:
                failures.append(f"a traceback for {frames!r}")
        except ConnectionError:
            pass
        except TimeoutError:
            failures.append(f"no end of the answer to {frames!r}")
        finally:
            writer.close()
        statuses["frames"] += len(frames)

    @hypothesis.settings(max_examples=count, **SETTINGS)
    @given(frames=st.lists(FRAMES, min_size=1, max_size=3))
    def send_some(frames: list[bytes]) -> None:
        asyncio.run(send_frames(frames))

    send_some()


def leave_at_random(server: ServerProcess, count: int, failures: Failures, statuses: Counter) -> None:
    """Let clients leave within two seconds of their request, forty at once."""
    chance = random.Random(0)
    body = json.dumps({"model": "heart", "input": " ".join([TEXT] * 2), "response_format": "wav"})
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    async def visit() -> None:
        async with places:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head[: chance.randrange(len(head))] if chance.random() < 0.2 else head)
            with suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(reader.read(chance.choice([1, 1000, 100_000])), chance.random() * 2)
            writer.transport.abort() if chance.random() < 0.5 else writer.close()
            statuses["left"] += 1

    async def visit_all() -> None:
        await asyncio.gather(*(visit() for _ in range(count)))

    places = asyncio.Semaphore(40)
    asyncio.run(visit_all())


def speak_all_lengths(server: ServerProcess) -> None:
    for digits in range(1, 80, 6):
        post(server, **{**VALID, "input": "9" * digits})


def settled(server: ServerProcess, seconds: float = 60.0) -> dict[str, float]:
    """Return the resources that the server holds once no request is left."""
    until = time.monotonic() + seconds
    while (requests := active(server)) and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(1)
    return {**server.status(), "active": requests}


PHASES: dict[str, Callable[..., None]] = {
    "schema": fuzz_schema,
    "bodies": fuzz_bodies,
    "frames": fuzz_wyoming,
    "leaving": leave_at_random,
}


def run(count: int, leaving: int, kinds: Sequence[str] = tuple(PHASES)) -> dict[str, Any]:
    """Run the campaign, and return its result as a JSON object. "failures" is empty if nothing failed."""
    failures, statuses = Failures(), Counter()
    amounts = {"schema": count // 2, "bodies": count // 2, "frames": count // 4, "leaving": leaving}
    phases = [(PHASES[kind], amounts[kind]) for kind in kinds]
    began = time.monotonic()
    with ServerProcess(
        "--models",
        "heart,demo",
        "--preload",
        "heart,demo",
        "--token",
        TOKEN,
        "--add-voices",
        "--wyoming-port",
        "0",
        "--characters",
        "80",
        "--idle",
        "5",
        "--seconds",
        "60",
        "--threads",
        str(min(2, usable_cores())),
    ) as server:
        server.wait_until_ready()
        valid = json.dumps({**VALID, "input": TEXT}).encode()
        before = post(server, body=valid)
        speak_all_lengths(server)  # fills the caches of the libraries
        for phase, _ in phases:
            phase(server, 60, failures, Counter())
        held_before = settled(server)
        held_after, memory = held_before, {}
        for phase, amount in phases:
            phase(server, amount, failures, statuses)
            speak_all_lengths(server)  # returns memory that the long speech before has freed
            held_after = settled(server)
            memory[phase.__name__] = held_after["memory_kib"]
        if post(server, body=valid) != before:
            failures.append("the server does not speak as before")
        for name in ("threads", "files", "children", "active"):
            if held_after[name] > held_before[name] + MARGINS.get(name, 0):
                failures.append(f"{name}: {held_before[name]} before, {held_after[name]} after")
        if held_after["memory_kib"] > MEMORY_SHARE * held_before["memory_kib"]:
            failures.append(f"memory: {held_before['memory_kib']} KiB before, {held_after['memory_kib']} KiB after")
        errors = [record for record in server.log() if record["level"] == "error"]
        failures += [f"log: {record['message']}: {record.get('traceback', '')[-400:]}" for record in errors]
        if server.stop() != 0:
            failures.append("the server did not end as asked")
    return {
        "requests": {str(key): number for key, number in sorted(statuses.items(), key=str)},
        "seconds": round(time.monotonic() - began),
        "before": held_before,
        "after": held_after,
        "memory_kib_after": memory,
        "failures": sorted(set(failures)),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.campaigns requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="malformed requests (default: 10000)")
    parser.add_argument("--leaving", type=int, default=1000, metavar="N", help="clients that leave (default: 1000)")
    parser.add_argument("--kinds", nargs="+", choices=list(PHASES), default=list(PHASES), help="default: all")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write the result to FILE.json")
    options = parser.parse_args(arguments)
    result = run(options.requests, options.leaving, options.kinds)
    text = json.dumps(result, indent=1)
    sys.stdout.write(f"{text}\n")
    if options.output:
        options.output.write_text(f"{text}\n")
    return 1 if result["failures"] else 0
