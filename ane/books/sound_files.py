"""Write the sound of a job to files: at an unchanged level, at one loudness for the whole book, or as ACX requires."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ane.audio import writing
from ane.audio.loudness import LoudnessMeter
from ane.audio.media import ChapterMark, CoverImage
from ane.books import acx
from ane.books.assembly import BookTimeline, sound_of_book
from ane.books.levels import CEILING, BookLeveller, measured
from ane.books.store import JobStore


class SoundFiles:
    """A writer of a book's sound files. If the book must have a level, the writer also measures the decoded files.

    Args:
        loudness: Loudness of the whole book in LUFS. ``None`` leaves the level unchanged.
        for_acx: Whether to write files as ACX requires.
        parts: The timelines of the files, one per file.

    Attributes:
        whole: Meter that has measured the decoded sound of all files. ``None`` means that the book does not need a
            level.
        measures: The measured values of each file, in the order of ``acx.LIMITS``. The list is empty if ``for_acx`` is
            false.
    """

    def __init__(self, store: JobStore, loudness: float | None, for_acx: bool, parts: Sequence[BookTimeline]):
        self._store, self._acx, self.measures = store, for_acx, dict[str, list[float]]()
        self._leveller: BookLeveller | None = None
        if for_acx or loudness is not None:
            meters = {part.chapters[0].number: measured(sound_of_book(store, part), part.rate) for part in parts}
            self._levels = wanted_levels(meters, loudness)
            self._leveller = (
                BookLeveller("loudness", CEILING) if loudness is not None else BookLeveller("rms", acx.PEAK)
            )

    @property
    def whole(self) -> LoudnessMeter | None:
        return self._leveller.whole if self._leveller else None

    def write(
        self,
        part: BookTimeline,
        path: Path,
        tags: Mapping[str, str] = MappingProxyType({}),
        marks: Sequence[ChapterMark] = (),
        cover: CoverImage | None = None,
    ) -> None:
        """Write the sound file for a part of the book. ``ane.audio.writing`` explains the other arguments."""

        def encode(change: Callable[..., Iterable[np.ndarray]] = lambda pieces, rate: pieces) -> None:
            pieces = change(sound_of_book(self._store, part), part.rate)
            with writing(path, part.rate, tags, marks, cover, encoding=acx.FORMAT if self._acx else None) as append:
                for piece in acx.with_room_tone(pieces) if self._acx else pieces:
                    append(piece)

        if self._leveller is None:
            encode()
            return
        meter = self._leveller.write(path, *self._levels[part.chapters[0].number], encode)
        if self._acx:
            self.measures[path.name] = [part.samples / part.rate, meter.rms, meter.true_peak, meter.noise_floor]


def wanted_levels(meters: Mapping[int, LoudnessMeter], loudness: float | None) -> dict[int, tuple[float, float]]:
    """Return, for each sound, its present level and the level that its file must get, in dB.

    All files get the same gain.

    Args:
        loudness: Loudness of the whole book in LUFS. ``None`` means the RMS level for ACX, with every file in
            ``acx.RMS_RANGE``.
    """
    level, goal, least, most = (
        ("rms", acx.RMS, *acx.RMS_RANGE) if loudness is None else ("loudness", loudness, -np.inf, np.inf)
    )
    whole = LoudnessMeter(next(iter(meters.values())).rate)
    for meter in meters.values():
        whole.include(meter)
    gain = goal - getattr(whole, level) if np.isfinite(getattr(whole, level)) else 0.0
    levels = {number: getattr(meter, level) for number, meter in meters.items()}
    return {number: (before, float(np.clip(before + gain, least, most))) for number, before in levels.items()}
