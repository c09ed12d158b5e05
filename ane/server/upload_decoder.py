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
import soundfile

from ane.audio.reader import MAX_RATE, read_audio, resample
from ane.system.errors import UserError

UNREADABLE = "the file is not sound in a known format, or is damaged"
# FFmpeg's names of what holds sound itself: not those that name other files, such as concat and hls
CONTAINERS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"


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
    """Audio (S,) float32 and its rate: what libsndfile reads, else what FFmpeg does. Raises UserError."""
    try:
        return read_audio(file, seconds, allow_empty=True)
    except UserError as error:
        if not isinstance(error.__cause__, soundfile.LibsndfileError):      # it can read the format
            raise
        refused = error
    try:
        return read_container(file, seconds)
    except (OSError, ValueError, IndexError) as error:      # FFmpeg's errors are OSError or ValueError
        if "not sound in a format" in str(refused):
            raise UserError(UNREADABLE) from error
        raise refused from error


def read_container(file: Path, seconds: float) -> tuple[np.ndarray, int]:
    """``read_upload`` for a container of FFmpeg's, such as m4a or webm."""
    import av

    pieces: list[np.ndarray] = []
    samples = 0
    # the file alone: no other files, no network, however the container refers to them
    with av.open(str(file), options={"protocol_whitelist": "file", "format_whitelist": CONTAINERS,
                                     "enable_drefs": "0"}) as container:
        stream: Any = container.streams.audio[0]
        rate = int(stream.rate)
        if not 0 < rate <= MAX_RATE:
            raise UserError(UNREADABLE)
        to_mono = av.AudioResampler("flt", "mono", rate)
        for frame in container.decode(stream):
            for part in to_mono.resample(frame):
                pieces.append(part.to_ndarray()[0])
                samples += len(pieces[-1])
            if samples > seconds * rate:
                raise UserError(f"the recording is longer than {seconds:g} s")
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32), rate


def answer(content: dict[str, Any]) -> int:
    sys.stdout.buffer.write(json.dumps(content).encode() + b"\n")
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
