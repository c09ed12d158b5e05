"""The process that decodes an uploaded sound file, so that a malicious one harms nothing else.

    python -m ane.server.upload_decoder FILE MAX_SECONDS MAX_RATE

writes one line of JSON, {"rate": …} or {"error": …}, and then the samples, float32, mono. Sound of
a higher rate is resampled to MAX_RATE.
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
        audio, found = read_upload(file, seconds)
        if found > max_rate:
            audio, found = resample(audio, found, round(max_rate)), round(max_rate)
        if not np.isfinite(audio).all():
            raise UserError("the file holds NaN or infinite samples")
    except UserError as error:
        return answer({"error": str(error).replace(f"{file}: ", "")})
    except MemoryError:
        return answer({"error": "the file needs too much memory to be decoded"})
    answer({"rate": found})
    sys.stdout.buffer.write(np.ascontiguousarray(audio, np.float32).tobytes())
    return 0


def read_upload(file: Path, seconds: float) -> tuple[np.ndarray, int]:
    """Audio (S,) float32 of an upload and its rate. Raises UserError, whose message names no program."""
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
