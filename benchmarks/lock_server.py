"""The server that `ane serve` is compared with: one request at a time, behind a lock, each sent while it is made.

    python -m benchmarks.lock_server BUNDLE

prints its address. It answers the same requests, with model, seed, preset and pcm.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import ane
from ane.server.encoders import make_encoder


def make_lock_app(bundle: str) -> Starlette:
    synthesizer, lock = ane.load(bundle, keep=True), asyncio.Lock()
    synthesizer.prepare()

    async def speech(request: Request) -> StreamingResponse:
        body = await request.json()
        names = {"seed", "preset"} & set(body) if "preset" in body else ()
        await lock.acquire()
        stream = synthesizer.stream(body["input"], **{name: body[name] for name in names})
        encoder = make_encoder("pcm", stream.sample_rate)
        first = await asyncio.to_thread(next, stream)

        async def sound() -> AsyncIterator[bytes]:
            try:
                yield encoder.feed(first)
                while (piece := await asyncio.to_thread(next, stream, None)) is not None:
                    yield encoder.feed(piece)
                yield encoder.finish()
            finally:
                lock.release()

        return StreamingResponse(sound(), media_type="audio/pcm")

    return Starlette(routes=[Route("/v1/audio/speech", speech, methods=["POST"])])


if __name__ == "__main__":
    opened = socket.create_server(("127.0.0.1", 0), backlog=1024)
    app = make_lock_app(sys.argv[1])
    sys.stdout.write(f"http://127.0.0.1:{opened.getsockname()[1]}/\n")
    sys.stdout.flush()
    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve([opened]))
