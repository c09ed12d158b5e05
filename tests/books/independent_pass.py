"""Campaign: which defects does a book narrated with `ane read --check` have that the check does not report?

    python -m tests.books.independent_pass [--words 10000] [--text FILE] [--voice rms] [--job DIR] [-o FILE.json]

A book is narrated by the command itself. Then every chunk is looked at in ways that the check does not use: a
recogniser writes down what it hears without the text, beside the same for flite, the voice's teacher, on the same text,
so that the recogniser's own errors are known; the sound is laid along the teacher's by time warping, where missing or
added speech stands still on one side; and other measures of clicks, silence, pitch and loudness. The most unusual
chunks by each measure are suspects. Those that the check did not report are listed to be judged one by one; the
judgements are in ``JUDGED``. How much such a pass finds is measured with defects put into chunks of the same book.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.audio import resample
from ane.books.checking.judging import ChunkSignals
from ane.books.checking.recognisers import TextAligner
from ane.books.speakers import SpokenChunk, TortoiseSpeaker
from ane.books.store import JobStore, StoredChunk
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.settings import Settings
from ane.models.warping import warping_path
from ane.system.errors import UserError
from ane.system.files import write_json
from ane.text import NORMALISERS
from benchmarks.listening import Recogniser, Wave, edits, words
from benchmarks.word_reference import cepstra
from tests.books.defects import DefectMaker, SpokenPart, book_of_sentences
from training.speech import RATE
from training.timed_speech import TimedFlite

RATE_OF_VOICE = 24000
SHORT_WORD = 0.15       # seconds: the length of shorter words says little
WINDOW = 20             # frames of 10 ms in which the two sounds must move along each other
QUIET = -25.0           # dB relative to the speech: below it a frame is a pause
EXTREME = 1.5           # percent of the book's chunks that are suspect by each measure
RESULT = Path(__file__).parent / "independent_pass.json"
JUDGED = Path(__file__).parent / "independent_pass_judged.json"


@dataclass(frozen=True)
class ChunkMeasures:
    """What a chunk is ranked by; more is worse.

    Attributes:
        words_wrong: words that the recogniser hears otherwise, less those that it hears otherwise from the teacher.
        added, missing: frames by which the teacher's sound, or the chunk's, falls short of ``WINDOW`` frames while the
            other moves on by as many, in speech. misfit: mean distance of cepstra in the worst window.
        clicks: their number. pause: seconds of silence more than the teacher's longest. pitch, loudness: distance from
            the book's median in semitones and dB. tempo: the same of the logarithm of length relative to the teacher's.
    """

    words_wrong: float
    added: float
    missing: float
    misfit: float
    clicks: float
    pause: float
    pitch: float
    loudness: float
    tempo: float


@dataclass(frozen=True)
class ListenedChunk:
    """A chunk, what is heard in it and, if that is not its text, in the teacher's sound, and its measures."""

    text: str
    heard: str
    teacher_heard: str
    measures: ChunkMeasures


class IndependentListener:
    """Measures chunks of a voice, beside the flite voice that it learned from."""

    def __init__(self, voice: str, libraries: str | None):
        self.teacher, self.recogniser = TimedFlite(voice, libraries), Recogniser(())
        self._taught: dict[str, np.ndarray] = {}
        self._heard: dict[str, str] = {}

    def listen(self, text: str, audio: np.ndarray, rate: int) -> ListenedChunk:
        """Measure a sound (S,) float32. Pitch, loudness and tempo are as they are, not yet distances."""
        sound = self.taught(text)
        expected, heard = words(NORMALISERS["english"](text)), self.recogniser.transcribe(audio, rate)
        wrong, teacher_heard = edits(expected, words(heard)), ""
        if wrong:
            if text not in self._heard:
                self._heard[text] = self.recogniser.transcribe(sound, RATE)
            teacher_heard = self._heard[text]
        added, missing, misfit = beside(sound, resample(audio, rate, RATE))
        wave = Wave.of(audio, rate)
        return ListenedChunk(text, heard, teacher_heard, ChunkMeasures(
            wrong - edits(expected, words(teacher_heard)) if wrong else 0, added, missing, misfit, wave.clicks,
            longest_pause(audio, rate) - longest_pause(sound, RATE), 12 * float(np.log2(wave.f0)), wave.loudness,
            float(np.log(len(audio) / rate * RATE / len(sound)))))

    def taught(self, text: str) -> np.ndarray:
        """The teacher's sound (S,) at 16 kHz of a text."""
        if text not in self._taught:
            self._taught[text] = self.teacher.speak(NORMALISERS["english"](text))[0]
        return self._taught[text]


def beside(theirs: np.ndarray, ours: np.ndarray) -> tuple[float, float, float]:
    """``added``, ``missing`` and ``misfit`` of two sounds (S,) at 16 kHz."""
    loud, other_loud = spoken_frames(ours), spoken_frames(theirs)
    theirs, ours = cepstra(theirs)[::2], cepstra(ours)[::2]
    deviation = theirs.std(axis=0) + 1e-6
    theirs, ours = theirs / deviation, ours / deviation
    squares = (theirs ** 2).sum(axis=1)[:, None] + (ours ** 2).sum(axis=1) - 2 * theirs @ ours.T
    distance = np.sqrt(np.maximum(squares, 0)).astype(np.float64)
    rows, columns = warping_path(distance)
    along = distance[rows, columns]
    misfit = max((along[start:start + WINDOW].mean() for start in range(max(1, len(along) - WINDOW))), default=0.0)
    return (standstill(columns, rows, loud), standstill(rows, columns, other_loud), float(misfit))


def standstill(frames: np.ndarray, others: np.ndarray, loud: np.ndarray) -> float:
    """By how many frames the other sound falls short of ``WINDOW`` at most while this one speaks for ``WINDOW``."""
    position = np.bincount(frames, others) / np.bincount(frames)
    advance = position[WINDOW:] - position[:-WINDOW]
    spoken = np.array([loud[start:start + WINDOW].all() for start in range(len(advance))], bool)
    return float(WINDOW - advance[spoken].min()) if spoken.any() else 0.0


def spoken_frames(audio: np.ndarray) -> np.ndarray:
    """Which frames of 10 ms of a sound (S,) at 16 kHz are no pause."""
    levels = np.sqrt(np.convolve(audio ** 2, np.full(400, 1 / 400), "same")[::RATE // 100])
    return levels > np.sqrt((levels ** 2).mean()) * 10 ** (QUIET / 20)


def longest_pause(audio: np.ndarray, rate: int) -> float:
    """Seconds."""
    loud = np.flatnonzero(spoken_frames(resample(audio, rate, RATE)))
    return float(np.diff(loud).max(initial=1) - 1) / 100


def narrated(folder: Path, text: Path, options: argparse.Namespace) -> Path:
    """The job of `ane read --check`; it goes on where it was."""
    output = folder / "book.wav"
    subprocess.run([sys.executable, "-m", "ane", "read", text, "-o", output, "--check", "--word-times", "--times", "-q",
                    "--preset", options.preset, "--voice", options.voice, "--seed", str(options.seed), "--bundle",
                    "demo"], check=True)
    return folder / "book.wav.job"


def listened(folder: Path, store: JobStore, listener: IndependentListener) -> list[ListenedChunk]:
    """Every chunk of a job, in order. What was listened to is kept in ``folder``; several processes may share it."""
    kept, chunks = folder / "listened.jsonl", store.chunks()
    for chunk in random.Random(os.getpid()).sample(chunks, len(chunks)):
        if f'"{chunk.chunk.key}"' not in (kept.read_text(encoding="utf-8") if kept.exists() else ""):
            found = listener.listen(chunk.chunk.text, store.sound(chunk.chunk.key), RATE_OF_VOICE)
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": chunk.chunk.key, **asdict(found)}) + "\n")
    found_by_key = {line.pop("key"): line for line in map(json.loads, kept.read_text(encoding="utf-8").splitlines())}
    return [ListenedChunk(**{**found_by_key[chunk.chunk.key],
                             "measures": ChunkMeasures(**found_by_key[chunk.chunk.key]["measures"])})
            for chunk in chunks]


def made_book(count: int, seed: int) -> str:
    """Chapters of held-out sentences and sentences of the training's grammar, ``count`` words, as plain text."""
    sentences = book_of_sentences(count // 6, random.Random(seed)).chapters[0].blocks
    lines, length = [], 0
    for number, block in enumerate(sentences):
        if length >= count:
            break
        lines += [f"Chapter {number // 20 + 1}"] * (number % 20 == 0) + [block.text]
        length += len(block.text.split())
    return "\n\n".join(lines) + "\n"


def spoken_part(store: JobStore, chunk: StoredChunk) -> SpokenPart:
    text, audio = chunk.chunk.text, store.sound(chunk.chunk.key)
    return SpokenPart(text, audio, store.words(chunk.chunk.key),
                      ChunkSignals.of(text, SpokenChunk(audio), RATE_OF_VOICE))


def with_distances(chunks: Sequence[ListenedChunk], book: Sequence[ListenedChunk]) -> list[ListenedChunk]:
    """Chunks with pitch, loudness and tempo as distances from the book's medians."""
    middle = {name: float(np.nanmedian([getattr(chunk.measures, name) for chunk in book]))
              for name in ("pitch", "loudness", "tempo")}
    return [replace(chunk, measures=replace(chunk.measures, **{
        name: abs(getattr(chunk.measures, name) - value) for name, value in middle.items()})) for chunk in chunks]


def limits_of(chunks: Sequence[ListenedChunk]) -> dict[str, float]:
    """Above which a measure is unusual: exceeded by ``EXTREME`` percent of the chunks."""
    return {name: float(np.nanpercentile([getattr(chunk.measures, name) for chunk in chunks], 100 - EXTREME))
            for name in vars(chunks[0].measures)}


def unusual(chunk: ListenedChunk, limits: dict[str, float]) -> list[str]:
    """The measures by which a chunk is a suspect."""
    return [name for name, limit in limits.items() if not getattr(chunk.measures, name) <= limit]


def power(parts: Sequence[SpokenPart], listener: IndependentListener, book: Sequence[ListenedChunk],
          limits: dict[str, float], options: argparse.Namespace) -> dict[str, Any]:
    """How many defects the pass finds that are put into chunks of the book, by kind."""
    synthesizer, rng = ane.load(keep=True), random.Random(options.seed)
    settings = Settings.of(options.preset, synthesizer.model.settings)
    speaker = TortoiseSpeaker(synthesizer, synthesizer.voice(options.voice, Randomness(0)), settings)
    maker, made, found = DefectMaker(speaker, parts, rng), Counter[str](), Counter[str]()
    for index in range(options.defects):
        kind = list(maker.kinds)[index % len(maker.kinds)]
        part = rng.choice([part for part in parts if len(part.words) > 4])
        listened = listener.listen(part.text, maker.kinds[kind](part), maker.rate)
        made[kind] += 1
        found[kind] += bool(unusual(with_distances([listened], book)[0], limits))
    return {kind: {"made": made[kind], "found": found[kind]} for kind in made}


def campaign(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    text = folder / "book.txt"
    text.write_text(options.text.read_text(encoding="utf-8") if options.text else
                    made_book(options.words, options.seed), encoding="utf-8")
    store = JobStore(narrated(folder, text, options))
    listener = IndependentListener(options.voice, options.flite_libraries)
    chunks, raw = store.chunks(), listened(folder, store, listener)
    reported = [chunk.problems for chunk in chunks]
    replaced = sum(store.signals_of(chunk.chunk.key) is None for chunk in chunks)
    parts = [spoken_part(store, chunk) for chunk in chunks]
    store.close()
    book = with_distances(raw, raw)
    limits = limits_of(book)
    suspects = list(suspects_of(book, parts, reported, limits, listener))
    good = [part for part, problems in zip(parts, reported, strict=True) if not problems]
    counted = [len(words(NORMALISERS["english"](chunk.text))) for chunk in book]
    return {"text": options.text.name if options.text else "made", "voice": options.voice, "preset": options.preset,
            "seed": options.seed, "words": sum(counted), "chunks": len(book),
            "replaced_by_the_check": replaced, "reported_by_the_check": sum(map(bool, reported)),
            "words_heard_otherwise": word_errors(book, "heard"),
            "words_heard_otherwise_from_the_teacher_in_the_same_chunks": word_errors(book, "teacher_heard"),
            "limits": limits, "power": power(good, listener, raw, limits, options),
            "suspects_not_reported": len(suspects), "judged_as": {}, "suspects": suspects,
            "reported": [{"text": chunk.text, "heard": chunk.heard, "problems": problems}
                         for chunk, problems in zip(book, reported, strict=True) if problems]}


def fits_best(text: str, heard: str, audio: np.ndarray, rate: int) -> str:
    """What fits the sound (S,) best if the recogniser may choose: the text, what it heard without it, or the text with
    words that it heard otherwise left out or said twice."""
    expected, other = words(NORMALISERS["english"](text)), words(heard)
    choices = {"its text": expected, "what was heard": other}
    for kind, first, last, _, _ in SequenceMatcher(None, expected, other, False).get_opcodes():
        if kind in ("delete", "replace"):
            part = expected[first:last]
            choices[f"its text without {' '.join(part)!r}"] = expected[:first] + expected[last:]
            choices[f"its text with {' '.join(part)!r} twice"] = expected[:last] + part + expected[last:]
    try:
        chosen = Recogniser([" ".join(choice) for choice in choices.values() if choice]).chosen(audio, rate)
    except UserError:
        return "not known: a word is in no dictionary"
    return next((name for name, choice in choices.items() if " ".join(choice) == chosen), "nothing")


def beside_teacher(text: str, audio: np.ndarray, rate: int, teacher: np.ndarray) -> dict[str, str]:
    """The words of a sound (S,) that fit worse than the teacher's do (nats a frame), or are shorter or longer."""
    aligner = TextAligner()
    ours, theirs = (aligner.fit(text, sound, hertz).words for sound, hertz in ((audio, rate), (teacher, RATE)))
    if not ours or not theirs or len(ours) != len(theirs):
        return {"words": "not found in one of the sounds"}
    both = list(zip(ours, theirs, strict=True))
    fit, other = max(both, key=lambda pair: pair[0].misfit - pair[1].misfit)
    lengths = {f"{one.word}: {one.end - one.start:.2f} s, the teacher {two.end - two.start:.2f}":
               (one.end - one.start) / (two.end - two.start) for one, two in both if two.end - two.start > SHORT_WORD}
    return {"fits_worst": f"{fit.word}: {fit.misfit:.1f}, the teacher {other.misfit:.1f}",
            "shortest": min(lengths, key=lengths.__getitem__, default=""),
            "longest": max(lengths, key=lengths.__getitem__, default="")}


def word_errors(book: Sequence[ListenedChunk], heard: str) -> int:
    return sum(edits(words(NORMALISERS["english"](chunk.text)), words(getattr(chunk, heard))) for chunk in book
               if words(NORMALISERS["english"](chunk.text)) != words(chunk.heard))


def suspects_of(book: Sequence[ListenedChunk], parts: Sequence[SpokenPart], reported: Sequence[list[str]],
                limits: dict[str, float], listener: IndependentListener) -> Iterator[dict[str, Any]]:
    """The suspects that the check did not report, and what a closer look shows."""
    for number, (chunk, part, problems) in enumerate(zip(book, parts, reported, strict=True), 1):
        by = unusual(chunk, limits)
        if by and not problems:
            compared = beside_teacher(chunk.text, part.audio, RATE_OF_VOICE, listener.taught(chunk.text))
            yield {"chunk": number, "text": chunk.text, "heard": chunk.heard, "teacher_heard": chunk.teacher_heard,
                   "unusual": by, "fits_best": fits_best(chunk.text, chunk.heard, part.audio, RATE_OF_VOICE),
                   "beside_the_teacher": compared,
                   "measures": {name: round(value, 2) for name, value in asdict(chunk.measures).items()}}


def with_judgements(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose suspects have the judgements of ``JUDGED``."""
    judged = json.loads(JUDGED.read_text(encoding="utf-8")) if JUDGED.exists() else {}
    suspects = [{**suspect, **judged.get(suspect["text"], {"judged": "not yet", "because": ""})}
                for suspect in result["suspects"]]
    return {**result, "judged_as": dict(Counter(suspect["judged"] for suspect in suspects)), "suspects": suspects}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=10_000, help="of the book that is made, about")
    parser.add_argument("--text", type=Path, help="narrate this file")
    parser.add_argument("--voice", default="rms")
    parser.add_argument("--preset", default="fastest")
    parser.add_argument("--defects", type=int, default=120, help="by which the pass itself is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flite-libraries", metavar="DIR", help="flite's shared libraries (default: the system's)")
    parser.add_argument("--job", type=Path, help="folder of the narrated book, which is kept (default: temporary)")
    parser.add_argument("--judge", action="store_true", help="only add the judgements to the result that is there")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.job or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = json.loads(options.output.read_text(encoding="utf-8")) if options.judge else campaign(options, folder)
    result = with_judgements(result)
    write_json(options.output, result)
    sys.stdout.write(f"{result['chunks']} chunks, {result['words']} words; {result['reported_by_the_check']} reported "
                     f"by the check; {result['suspects_not_reported']} other suspects: {result['judged_as']}; "
                     f"{options.output}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
