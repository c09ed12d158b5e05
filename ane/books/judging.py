"""Judge whether a chunk was spoken well: compare signals of its sound and codes with limits and the book's medians.

We chose the limits from the distributions in ``tools/campaigns/results/defects-rms.json`` and ``defects.json``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ane.books.speakers import SpokenChunk
from ane.speech.words import SpokenWord
from ane.system.checked import read_record
from ane.text import NORMALISERS
from ane.text.passages import without_commands

FRAMES = 100  # frames per second in the times of a recogniser
FRAME = 0.01  # seconds per frame
QUIET = 10 ** (-45 / 20)  # root mean square below which a frame is silent, as in ``ane.audio.trimming``
CLICK = 6.0  # ratio of a click's step between two samples to the largest step near it (in speech, at most 4)
CLICK_REACH = 20  # milliseconds before and after a step that are near it. A low voice has a shorter period.
LEAST_STEP = 0.004  # smallest step, as a share of full scale, with which a click is compared
FULL = 0.999  # a sample counts as full scale if it is at least this share of full scale
CLIPPED_RUN = 4  # minimum number of successive samples at full scale that count as clipping
EDGE_FRAMES = 2  # frames at each end that must be quieter than the speech


@dataclass(frozen=True)
class SoundSignals:
    """Signals of a sound that show whether it was spoken well.

    Attributes:
        seconds: Seconds from the first to the last frame that is not silent.
        loudness: Level of the frames that are not silent, in dBFS.
        clipped: Number of runs of at least ``CLIPPED_RUN`` samples at full scale.
        clicks: Number of milliseconds in which samples jump as they never do in speech.
        pause: Seconds of the longest silence within the speech.
        edge: Level of the louder end, in dB relative to ``loudness``. If speech is cut off, this level is near 0 or
            above.
    """

    seconds: float
    loudness: float
    clipped: int
    clicks: int
    pause: float
    edge: float


def signals_of(audio: np.ndarray, rate: int) -> SoundSignals:
    """Measure the signals of a sound (S,) float32 whose silence at both ends has been trimmed."""
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
    """Return the root mean square of each frame of a sound (S,)."""
    size = round(FRAME * rate)
    return np.sqrt((audio[: len(audio) // size * size].reshape(-1, size) ** 2).mean(axis=1))


def runs_at_full_scale(audio: np.ndarray) -> int:
    full = np.concatenate(([0], (np.abs(audio) >= FULL).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(full))
    return int((edges[1::2] - edges[::2] >= CLIPPED_RUN).sum())


def clicks(audio: np.ndarray, rate: int) -> int:
    """Count the milliseconds in which a sound has a click.

    A click is a step between two samples that is ``CLICK`` times as large as every other step near it. A click may be
    longer than a millisecond. The function therefore does not compare the steps in a millisecond with the steps in the
    milliseconds directly before and after. Speech has no such steps, because the pulses of a voice repeat within
    ``CLICK_REACH``, and a burst lasts longer than a click.
    """
    size = rate // 1000
    steps = np.abs(np.diff(audio))
    largest = np.pad(steps[: len(steps) // size * size].reshape(-1, size).max(axis=1, initial=0), CLICK_REACH)
    near = np.lib.stride_tricks.sliding_window_view(largest, 2 * CLICK_REACH + 1)
    around = np.maximum(near[:, : CLICK_REACH - 1].max(axis=1), near[:, CLICK_REACH + 2 :].max(axis=1))
    return int((near[:, CLICK_REACH] > CLICK * np.maximum(around, LEAST_STEP)).sum())


def decibels(ratio: float) -> float:
    return float(20 * np.log10(max(ratio, 1e-6)))


# Limits. A chunk is suspect if one of its signals is beyond its limit.
CUT_OFF = -20.0  # level of the louder end, in dB relative to the speech
PAUSE = 1.2  # seconds of silence within a chunk
LOOP = 12  # successive equal codes, or successive equal short runs of codes
LOUDNESS = 6.0  # distance from the book's median in dB
PROBABILITY = 0.6  # nats per code below the book's median
DURATION_RATIO = 1.6  # ratio of a chunk's seconds per letter to the book's median, or its inverse
MIN_LETTERS = 20  # minimum number of letters for judging the seconds per letter
MIN_CHUNKS = 20  # minimum number of chunks for computing medians
SKIPPED = 0.04  # a word is skipped if it takes fewer seconds (a spoken word takes at least 0.06)
SKIPPED_LETTERS = 3  # minimum number of letters for judging whether a word was skipped
GOOD_MISFIT = 3.0  # highest ``WordFit.misfit`` of correctly spoken words, in nats per frame
MISFIT = 50.0  # ``WordFit.excess`` of one word, in nats
UNHEARD = 15.0  # excess in nats of a word that the recogniser leaves out when it may (a spoken word has at most 14)
LEFT_OVER = 0.1  # seconds of loud sound outside all words
LOUD = -12.0  # a frame is loud if its level is higher than this, in dB relative to the speech


@dataclass(frozen=True)
class WordFit:
    """A word of the text, and the stretch of sound in which the recogniser found it.

    Attributes:
        start: Start in seconds.
        end: End in seconds.
        misfit: Misfit of the sound and the word in nats per frame. Correctly spoken words have 1 to 3. A worse fit has
            more.
    """

    word: str
    start: float
    end: float
    misfit: float

    @property
    def excess(self) -> float:
        """Nats by which the sound fits the word worse than it would fit if the word were spoken correctly."""
        return max(0.0, self.misfit - GOOD_MISFIT) * (self.end - self.start) * FRAMES


@dataclass(frozen=True)
class TextFit:
    """An alignment of a sound with its text, which tells how well the sound fits each word.

    Attributes:
        words: The words that the recogniser's dictionary has. ``None`` means that no alignment with the sound was
            found.
        pauses: The stretches between words, as (start, end) in seconds.
    """

    words: tuple[WordFit, ...] | None
    pauses: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class ChunkProblem:
    """A problem that was found in a chunk.

    Attributes:
        text: Description of the problem.
        severity: The measured value divided by its limit.
    """

    text: str
    severity: float


@dataclass(frozen=True)
class ChunkSignals:
    """The signals of a spoken chunk.

    The signals that describe codes are ``None`` if the model's decoder makes no codes.

    Attributes:
        letters: Number of letters in the text.
        stopped: Whether the codes end with a stop code.
        loop: Number of successive repetitions in the longest loop of codes.
        log_probability: Mean log probability of a code, in nats.
    """

    sound: SoundSignals
    letters: int
    stopped: bool | None = None
    loop: int | None = None
    log_probability: float | None = None

    @classmethod
    def of(cls, text: str, spoken: SpokenChunk, rate: int) -> "ChunkSignals":
        """Return the signals that the job stored for a chunk with this text. If the job stored none, measure them."""
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
        """Seconds per letter, or ``None`` if the text is too short."""
        return self.sound.seconds / self.letters if self.letters >= MIN_LETTERS else None


@dataclass(frozen=True)
class BookNorms:
    """Medians of signals over the chunks of a book. ``None`` means that too few chunks have the signal."""

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
    """Return the problems that show in the signals of a chunk's codes and sound."""
    sound, problems = signals.sound, []

    def note(text: str, severity: float) -> None:
        if severity > 1:
            problems.append(ChunkProblem(text, severity))

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
        note(f"it takes {ratio:.1f} times as long per letter as the book", max(ratio, 1 / ratio) / DURATION_RATIO)
    if norms.log_probability is not None and signals.log_probability is not None:
        note("its codes have a low probability", (norms.log_probability - signals.log_probability) / PROBABILITY)
    return problems


def skipped_words(words: Iterable[SpokenWord]) -> list[ChunkProblem]:
    """Return a problem for each skipped word.

    A word counts as skipped if the decoder's attention gives it almost no time.
    """
    return [
        ChunkProblem(f"{word.word!r} is skipped", 2.0)
        for word in words
        if not word.estimated
        and 0 < word.end - word.start < SKIPPED
        and sum(map(str.isalpha, word.word)) >= SKIPPED_LETTERS
    ]


def misfits(fit: TextFit, audio: np.ndarray, rate: int, loudness: float) -> list[ChunkProblem]:
    """Return the problems that show when the sound (S,) is aligned with the words of its text.

    Args:
        loudness: Level of the speech in dBFS.
    """
    if fit.words is None:
        return [ChunkProblem("the words of its text are not found in the sound", 10.0)]
    problems = []
    excess, word = worst_word(fit.words)
    if word and excess > MISFIT:
        problems.append(ChunkProblem(f"{word.word!r} is not found at {word.start:.1f} s", excess / MISFIT))
    left = left_over(fit, audio, rate, loudness)
    if left > LEFT_OVER:
        problems.append(ChunkProblem("loud sound belongs to no word of its text", left / LEFT_OVER))
    return problems


def worst_word(words: Sequence[WordFit]) -> tuple[float, WordFit | None]:
    """Return the largest excess of any word in nats, and that word. Return (0, None) if every word fits."""
    worst = max(words, key=lambda word: word.excess, default=None)
    return (worst.excess, worst) if worst and worst.excess else (0.0, None)


def left_over(fit: TextFit, audio: np.ndarray, rate: int, loudness: float) -> float:
    """Return how many seconds of loud sound the loudest stretch between words has."""
    return max((loud_seconds(audio, rate, pause, loudness) for pause in fit.pauses), default=0.0)


def loud_seconds(audio: np.ndarray, rate: int, span: tuple[float, float], loudness: float) -> float:
    """Return how many seconds within a span of a sound (S,) are about as loud as the speech."""
    part = audio[max(0, round(span[0] * rate)) : max(0, round(span[1] * rate))]
    return FRAME * sum(decibels(level) > loudness + LOUD for level in frame_levels(part, rate).tolist())
