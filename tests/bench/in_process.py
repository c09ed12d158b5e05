"""Run ``ane.bench.sessions.WorkerProcess`` in this process, which saves imports and lets tests use stand-ins."""

import json
from functools import partial

import pytest

from ane.bench.worker import BenchWorker, TimedRequest
from ane.system.machine import peak_memory_bytes


def shorten_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `ane bench` make at most 8 codes of a Tortoise."""
    monkeypatch.setattr("ane.bench.worker.TimedRequest", partial(TimedRequest, max_codes=8))


class InProcessWorker:
    cold_start = 0.0

    def __init__(self, threads: int | None = None):
        self.worker = BenchWorker()

    @property
    def peak_bytes(self):
        return peak_memory_bytes()

    def ask(self, request):
        return json.loads(json.dumps(self.worker.answer(json.loads(json.dumps(request)))))

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
