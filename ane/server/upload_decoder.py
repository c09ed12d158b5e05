"""Decode an uploaded sound file in a separate process, so that a malicious file cannot harm the server.

    python -m ane.server.upload_decoder FILE MAX_SECONDS MAX_RATE

The process writes one line of JSON, {"rate": …} or {"error": …}, and then the samples as mono float32. If the
rate of the sound is above MAX_RATE, the process resamples the sound to MAX_RATE.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio.reader import read_recording, resample
from ane.system.errors import UserError

UNREADABLE = "the file is not sound in a known format, or is damaged"


def main(arguments: list[str]) -> int:
    file, seconds, max_rate = Path(arguments[0]), *map(float, arguments[1:])
    try:
        audio, rate = read_upload(file, seconds)
        if rate > max_rate:
            audio, rate = resample(audio, rate, round(max_rate)), round(max_rate)
        if not np.isfinite(audio).all():
            raise UserError("the file has NaN or infinite samples")
    except UserError as error:
        return answer({"error": str(error).replace(f"{file}: ", "")})
    except MemoryError:
        return answer({"error": "the file needs too much memory to be decoded"})
    answer({"rate": rate})
    sys.stdout.buffer.write(np.ascontiguousarray(audio, np.float32).tobytes())
    return 0


def read_upload(file: Path, seconds: float) -> tuple[np.ndarray, int]:
    """Decode an uploaded file to (S,) float32 and its rate.

    Raises UserError, whose message names no internal program.
    """
    try:
        return read_recording(file, seconds)
    except UserError as refused:
        if "not sound in a format" in str(refused):
            raise UserError(UNREADABLE) from refused
        raise


def answer(content: dict[str, Any]) -> int:
    sys.stdout.buffer.write(json.dumps(content).encode() + b"\n")
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
