"""Whether a chunk was spoken well: its signals compared with limits and with the medians of its book.

The limits are from the distributions that ``tools/campaigns/results/defects-rms.json`` and ``defects.json`` record.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ane.books.speakers import SpokenChunk
from ane.speech.words import SpokenWord
from ane.system.checked import read_record
from ane.text import NORMALISERS
from ane.text.passages import without_commands

FRAMES = 100  # of a recogniser, a second
FRAME = 0.01  # seconds of a frame
QUIET = 10 ** (-45 / 20)  # root mean square of a silent frame, as ``ane.audio.trimming`` has it
CLICK = 6.0  # a click is a step between samples of this many times the largest near it: speech has up to 4
CLICK_REACH = 20  # milliseconds before and after that count as near: more than a period of a low voice
LEAST_STEP = 0.004  # of full scale: the largest step in what is nearly silent
FULL = 0.999  # of full scale
CLIPPED_RUN = 4  # samples at full scale in a row that are clipping
EDGE_FRAMES = 2  # frames at either end that must be quieter than the speech


@dataclass(frozen=True)
class SoundSignals:
    """Signals of a sound (S,)."""

    seconds: float  # from the first to the last frame that is not silent
    loudness: float  # of these frames, in dBFS
    clipped: int  # runs of at least ``CLIPPED_RUN`` samples at full scale
    clicks: int  # milliseconds with a step that no speech has
    pause: float  # seconds of the longest silence inside
    edge: float  # dB of the louder end relative to ``loudness``: near 0 or above where speech is cut off


def signals_of(audio: np.ndarray, rate: int) -> SoundSignals:
    """The signals of a sound (S,) float32, trimmed as the chunks of a book are."""
    levels = frame_levels(audio, rate)
    loud = np.flatnonzero(levels > QUIET)
    if not len(loud):
        return SoundSignals(0.0, -120.0, 0, 0, 0.0, -120.0)
    level, size = float(np.sqrt((levels[loud] ** 2).mean())), EDGE_FRAMES * round(FRAME * rate)
    edge = max(float(np.sqrt((end**2).mean())) for end in (audio[:size], audio[-size:]))
    return SoundSignals(
        (loud[-1] + 1 - loud[0]) * FRAME,
        decibels(level),
        runs_at_full_scale(audio),
        clicks(audio, rate),
        float(max(np.diff(loud), default=1) - 1) * FRAME,
        decibels(edge / level),
    )


def frame_levels(audio: np.ndarray, rate: int) -> np.ndarray:
    """The root mean square of each frame of a sound (S,)."""
    size = round(FRAME * rate)
    return np.sqrt((audio[: len(audio) // size * size].reshape(-1, size) ** 2).mean(axis=1))


def runs_at_full_scale(audio: np.ndarray) -> int:
    full = np.concatenate(([0], (np.abs(audio) >= FULL).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(full))
    return int((edges[1::2] - edges[::2] >= CLIPPED_RUN).sum())


def clicks(audio: np.ndarray, rate: int) -> int:
    """Milliseconds with a step between samples of ``CLICK`` times the largest step near them, but not beside them.

    Pulses of a voice come again within ``CLICK_REACH``, and what bursts goes on.
    """
    size = rate // 1000
    steps = np.abs(np.diff(audio))
    largest = np.pad(steps[: len(steps) // size * size].reshape(-1, size).max(axis=1, initial=0), CLICK_REACH)
    near = np.lib.stride_tricks.sliding_window_view(largest, 2 * CLICK_REACH + 1)
    around = np.maximum(near[:, : CLICK_REACH - 1].max(axis=1), near[:, CLICK_REACH + 2 :].max(axis=1))
    return int((near[:, CLICK_REACH] > CLICK * np.maximum(around, LEAST_STEP)).sum())


def decibels(ratio: float) -> float:
    return float(20 * np.log10(max(ratio, 1e-6)))


CUT_OFF = -20.0  # dB: the level of an end relative to the speech, above which it was cut off
PAUSE = 1.2  # seconds of silence within a chunk
LOOP = 12  # equal codes, or equal short runs of codes, in a row
LOUDNESS = 6.0  # dB from the book's median
PROBABILITY = 0.6  # nats a code below the book's median
DURATION_RATIO = 1.6  # seconds a letter, as a multiple of the book's median, or the median as a multiple of them
MIN_LETTERS = 20  # letters of a chunk of which the seconds a letter are judged
MIN_CHUNKS = 20  # chunks of a book from which its medians are known
SKIPPED = 0.04  # seconds that a word takes which is not spoken: one that is takes 0.06 at least
SKIPPED_LETTERS = 3  # of such a word, at least
GOOD_MISFIT = 3.0  # nats a frame: the highest misfit of words that are spoken correctly
MISFIT = 50.0  # nats of a word, above that
UNHEARD = 15.0  # nats of a word that may be missing and is not heard: one that is spoken has 14 at most
LEFT_OVER = 0.1  # loud seconds that belong to no word
LOUD = -12.0  # dB relative to the speech, from which a frame is loud


@dataclass(frozen=True)
class WordFit:
    """A word where the recogniser found it: seconds, and how badly it fits (nats a frame; speech has 1 to 3)."""

    word: str
    start: float
    end: float
    misfit: float

    @property
    def excess(self) -> float:
        """Nats by which it fits worse than a word that is spoken."""
        return max(0.0, self.misfit - GOOD_MISFIT) * (self.end - self.start) * FRAMES


@dataclass(frozen=True)
class TextFit:
    """How a sound fits its words."""

    words: tuple[WordFit, ...] | None  # those of the recogniser's dictionary; None: they were not found at all
    pauses: tuple[tuple[float, float], ...] = ()  # seconds, (start, end), of what is left over between them


@dataclass(frozen=True)
class ChunkProblem:
    """What is wrong with a chunk, in words, and by how many times it exceeds its limit."""

    what: str
    severity: float


@dataclass(frozen=True)
class ChunkSignals:
    """What is known of a spoken chunk."""

    sound: SoundSignals
    letters: int  # that were to be spoken
    stopped: bool | None = None  # this and what follows: of the decoder's codes; None: it has none
    loop: int | None = None
    log_probability: float | None = None

    @classmethod
    def of(cls, text: str, spoken: SpokenChunk, rate: int) -> "ChunkSignals":
        """Return the stored signals of a chunk with this text, or measure them if the job has none."""
        if spoken.signals is not None:
            return read_record(cls, spoken.signals, "the job")
        letters = sum(map(str.isalpha, NORMALISERS["english"](without_commands(text))))
        sound, parts = signals_of(spoken.audio, rate), spoken.decoded
        if not parts:
            return cls(sound, letters)
        return cls(
            sound,
            letters,
            all(part.stopped for part in parts),
            max(part.loop for part in parts),
            min(part.log_probability for part in parts),
        )

    @property
    def seconds_per_letter(self) -> float | None:
        """None: too short to tell."""
        return self.sound.seconds / self.letters if self.letters >= MIN_LETTERS else None


@dataclass(frozen=True)
class BookNorms:
    """Medians over the chunks of a book; None: too few."""

    loudness: float | None = None
    seconds_per_letter: float | None = None
    log_probability: float | None = None

    @classmethod
    def of(cls, chunks: Iterable[ChunkSignals]) -> "BookNorms":
        spoken = [chunk for chunk in chunks if chunk.sound.seconds]
        return cls(
            median([chunk.sound.loudness for chunk in spoken]),
            median([chunk.seconds_per_letter for chunk in spoken]),
            median([chunk.log_probability for chunk in spoken]),
        )


def median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if len(known) >= MIN_CHUNKS else None


def problems_of(signals: ChunkSignals, norms: BookNorms) -> list[ChunkProblem]:
    """What the decoder's codes and the sound tell."""
    sound, found = signals.sound, []

    def note(what: str, severity: float) -> None:
        if severity > 1:
            found.append(ChunkProblem(what, severity))

    if signals.letters and not sound.seconds:
        return [ChunkProblem("it is silent", 10.0)]
    note("it has no stop code", 2.0 * (signals.stopped is False))
    note("its codes repeat", (signals.loop or 0) / LOOP)
    note("it is clipped", 2.0 * sound.clipped)
    note("it clicks", 1.0 + sound.clicks if sound.clicks else 0.0)
    note("it is cut off at an end", 1 + (sound.edge - CUT_OFF) / 10)
    note(f"it has a pause of {sound.pause:.1f} s", sound.pause / PAUSE)
    if norms.loudness is not None:
        off = sound.loudness - norms.loudness
        note(f"it is {abs(off):.0f} dB {'louder' if off > 0 else 'softer'} than the book", abs(off) / LOUDNESS)
    if norms.seconds_per_letter and signals.seconds_per_letter:
        ratio = signals.seconds_per_letter / norms.seconds_per_letter
        note(
            f"it takes {ratio:.1f} times as long as its letters do in the book", max(ratio, 1 / ratio) / DURATION_RATIO
        )
    if norms.log_probability is not None and signals.log_probability is not None:
        note("its codes have a low probability", (norms.log_probability - signals.log_probability) / PROBABILITY)
    return found


def skipped_words(words: Iterable[SpokenWord]) -> list[ChunkProblem]:
    """Words that the decoder passed over, by the times that its attention states."""
    return [
        ChunkProblem(f"{word.word!r} is skipped", 2.0)
        for word in words
        if not word.estimated
        and 0 < word.end - word.start < SKIPPED
        and sum(map(str.isalpha, word.word)) >= SKIPPED_LETTERS
    ]


def misfits(fit: TextFit, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
    """What a recogniser that is given the words finds. ``loudness``: of the speech (S,), in dBFS."""
    if fit.words is None:
        return [ChunkProblem("the words of its text are not found in the sound", 10.0)]
    found = []
    excess, word = worst_word(fit.words)
    if word and excess > MISFIT:
        found.append(ChunkProblem(f"{word.word!r} is not found at {word.start:.1f} s", excess / MISFIT))
    left = left_over(fit, audio, rate, loudness)
    if left > LEFT_OVER:
        found.append(ChunkProblem("loud sound belongs to no word of its text", left / LEFT_OVER))
    return found


def worst_word(words: Sequence[WordFit]) -> tuple[float, WordFit | None]:
    """The word that fits worst, and by how many nats it fits worse than a word that is spoken; (0, None): no words."""
    worst = max(words, key=lambda word: word.excess, default=None)
    return (worst.excess, worst) if worst and worst.excess else (0.0, None)


def left_over(fit: TextFit, audio: np.ndarray, rate: int, loudness: float) -> float:
    """Loud seconds of the longest stretch that belongs to no word."""
    return max((loud_seconds(audio, rate, pause, loudness) for pause in fit.pauses), default=0.0)


def loud_seconds(audio: np.ndarray, rate: int, span: tuple[float, float], loudness: float) -> float:
    """Seconds within a span of a sound (S,) that are about as loud as the speech."""
    part = audio[max(0, round(span[0] * rate)) : max(0, round(span[1] * rate))]
    return FRAME * sum(decibels(level) > loudness + LOUD for level in frame_levels(part, rate).tolist())
