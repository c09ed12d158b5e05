"""Splits the tokens of a window into timed segments, and finds where the next window begins (openai/whisper
transcribe.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

from ane.models.whisper.tokens import SECONDS_PER_TIMESTAMP

FRAMES_PER_TIMESTAMP = 2        # 0.02 s in mel frames


@dataclass(frozen=True)
class TimedTokens:
    """Tokens of a segment with its times in seconds, relative to the window."""

    start: float
    end: float
    tokens: tuple[int, ...]


def split_segments(tokens: Sequence[int], first_timestamp: int, frames: int,
                   seconds_per_frame: float) -> tuple[list[TimedTokens], int]:
    """Segments of a window of ``frames`` mel frames, and the frames by which the next window begins later.

    Two timestamps in a row end a segment and begin the next. If the tokens end with such a pair, or with text after
    one, what follows the pair belongs to the next window, which begins there. A single timestamp at the end says that
    nothing follows in this window.
    """
    is_timestamp = [token >= first_timestamp for token in tokens]
    pairs = [index for index in range(1, len(tokens)) if is_timestamp[index - 1] and is_timestamp[index]]
    single_end = ends_with_single_timestamp(tokens, first_timestamp)
    if not pairs:
        end = frames * seconds_per_frame
        last = next((token for token in reversed(tokens) if token >= first_timestamp), first_timestamp)
        if last != first_timestamp:
            end = (last - first_timestamp) * SECONDS_PER_TIMESTAMP
        return [TimedTokens(0.0, end, tuple(tokens))], frames
    segments, begin = [], 0
    for cut in [*pairs, len(tokens)] if single_end else pairs:
        part = tuple(tokens[begin:cut])
        start, end = ((token - first_timestamp) * SECONDS_PER_TIMESTAMP for token in (part[0], part[-1]))
        segments.append(TimedTokens(start, end, part))
        begin = cut
    if single_end:
        return segments, frames
    return segments, max(1, tokens[begin - 1] - first_timestamp) * FRAMES_PER_TIMESTAMP


def ends_with_single_timestamp(tokens: Sequence[int], first_timestamp: int) -> bool:
    """Whether the last token is a timestamp and the one before it is not: nothing follows in this window."""
    return [token >= first_timestamp for token in tokens[-2:]] == [False, True]
