"""Test whether `ane read --check` finds defects in speech, and whether it leaves good chunks alone.

    python -m tools.campaigns defects [--bundle heart] [--voice V] [--chunks 240] [--defects 200] [-o FILE]

An embedded voice narrates a book of sentences, and its chunks are judged as they are. Then sounds of the book get
defects, equally many of every kind, and each sound is judged among the unchanged chunks. Where a sound is spliced, the
parts overlap by 5 ms to avoid a click. With --whisper, the recogniser is Whisper with trained weights
(``benchmarks.data_packages``), as with `--recogniser`.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ane
from ane.backends import load_backend
from ane.books.document import BookChapter, Document
from ane.books.judging import BookNorms, ChunkSignals, left_over, worst_word
from ane.books.narration import narrate
from ane.books.plan import BookPlan, Silences, SpeechIdentity, plan_book
from ane.books.recognisers import TextAligner, TranscribingRecogniser
from ane.books.retries import BookChecker
from ane.books.speakers import BookSpeaker, SpokenChunk
from ane.books.store import JobStore
from ane.models.whisper.transcription import Transcriber
from ane.speech.words import SpokenWord
from ane.system.checked import read_record
from ane.system.files import write_json
from ane.text.blocks import PARAGRAPH, TextBlock
from benchmarks.data_packages import whisper_folder
from benchmarks.listening import edits, words
from tests.imported import imported
from tests.recogniser import Recogniser
from training.text import held_out_sentences, plain_sentence

SENTENCES_OF_A_PARAGRAPH = 8
LETTERS = 5  # minimum number of letters in words that are dropped or repeated
OVERLAP = 0.005  # seconds by which spliced parts overlap
CONFIRMED = 0.15  # a chunk is really bad if a recogniser without the text gets this share of its words wrong
RESULT = Path(__file__).parent / "results" / "defects.json"


@dataclass(frozen=True)
class SpokenPart:
    """A chunk of the narrated book, with its sound."""

    text: str
    audio: np.ndarray
    words: Sequence[SpokenWord]
    signals: ChunkSignals


def book_of_sentences(count: int, rng: random.Random) -> Document:
    """Make a document of held-out sentences and sentences from the training's grammar, shuffled, in paragraphs."""
    held_out = held_out_sentences()
    texts = [*held_out, *(plain_sentence(rng) for _ in range(max(0, 2 * count - len(held_out))))]
    rng.shuffle(texts)
    texts = [text[0].upper() + text[1:] for text in texts]
    paragraphs = [
        " ".join(texts[start : start + SENTENCES_OF_A_PARAGRAPH])
        for start in range(0, len(texts), SENTENCES_OF_A_PARAGRAPH)
    ]
    return Document(
        [BookChapter("Sentences", [TextBlock(PARAGRAPH, text) for text in paragraphs])], "Sentences", "", "en"
    )


def spoken_book(speaker: BookSpeaker, plan: BookPlan, folder: Path) -> list[SpokenPart]:
    store = JobStore(folder)
    store.adopt(plan)
    narrate(store, plan, speaker, lambda done, total, left: None)
    parts = [
        SpokenPart(
            chunk.chunk.text,
            store.sound(chunk.chunk.key),
            store.words(chunk.chunk.key),
            read_record(ChunkSignals, store.signals_of(chunk.chunk.key) or {}, "the job"),
        )
        for chunk in store.chunks()
    ]
    store.close()
    return parts


class DefectMaker:
    """A maker of defects. Each method returns the sound of a chunk, (S,) float32, with one kind of defect."""

    def __init__(self, speaker: BookSpeaker, parts: Sequence[SpokenPart], rng: random.Random):
        self.speaker, self.parts, self.rng, self.rate = speaker, parts, rng, speaker.sample_rate
        self.kinds: dict[str, Callable[[SpokenPart], np.ndarray]] = {
            "dropped words": self.dropped,
            "repeat": self.repeated,
            "babble": self.babble,
            "cut end": self.cut,
            "wrong chunk": self.wrong,
            "click": self.clicked,
        }

    def joined(self, *pieces: np.ndarray) -> np.ndarray:
        """Join sounds one after another. They overlap by ``OVERLAP`` seconds."""
        size = round(OVERLAP * self.rate)
        rise = np.linspace(0, 1, size, dtype=np.float32)
        whole = pieces[0]
        for piece in pieces[1:]:
            if min(len(whole), len(piece)) <= size:
                whole = np.concatenate((whole, piece))
                continue
            middle = whole[-size:] * rise[::-1] + piece[:size] * rise
            whole = np.concatenate((whole[:-size], middle, piece[size:]))
        return whole

    def stretch(self, part: SpokenPart, most: int) -> tuple[int, int]:
        """Choose a stretch of at most ``most`` words, and return its first sample and the one after its end."""
        while True:
            first = self.rng.randrange(len(part.words))
            chosen = part.words[first : first + self.rng.randint(1, most)]
            if sum(map(str.isalpha, "".join(word.word for word in chosen))) >= LETTERS:
                following = part.words[first + len(chosen) :]
                end = following[0].start if following else chosen[-1].end
                return round(chosen[0].start * self.rate), round(end * self.rate)

    def dropped(self, part: SpokenPart) -> np.ndarray:
        start, end = self.stretch(part, 3)
        return self.joined(part.audio[:start], part.audio[end:])

    def repeated(self, part: SpokenPart) -> np.ndarray:
        start, end = self.stretch(part, 4)
        return self.joined(part.audio[:end], part.audio[start:])

    def babble(self, part: SpokenPart) -> np.ndarray:
        """Insert meaningless syllables between two words or at the end."""
        text = " ".join(
            "".join(self.rng.choice("bdfgklmnprstvz") + self.rng.choice("aeiou") for _ in range(self.rng.randint(2, 3)))
            for _ in range(self.rng.randint(2, 4))
        )
        sound = self.speaker.speak(f"{text}.", self.rng.randrange(1 << 30)).audio
        at = round(self.rng.choice([*(word.start for word in part.words), part.words[-1].end]) * self.rate)
        return self.joined(part.audio[:at], sound, part.audio[at:])

    def cut(self, part: SpokenPart) -> np.ndarray:
        length = round(self.rng.uniform(0.15, 0.6) * self.rate)
        return part.audio[:-length] if self.rng.random() < 0.75 else part.audio[length:]

    def wrong(self, part: SpokenPart) -> np.ndarray:
        return self.rng.choice([other for other in self.parts if other.text != part.text]).audio

    def clicked(self, part: SpokenPart) -> np.ndarray:
        sound = part.audio.copy()
        for _ in range(self.rng.randint(1, 3)):
            at, size = self.rng.randrange(1, len(sound) - 4), self.rng.randint(1, 3)
            sound[at : at + size] = self.rng.choice((-1, 1)) * self.rng.uniform(0.5, 0.9)
        return sound


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(options.seed)
    synthesizer = ane.load(options.bundle, keep=True)
    speaker = BookSpeaker(synthesizer, synthesizer.request("", options.voice, options.preset, word_times=True))
    identity = SpeechIdentity(speaker.model, speaker.voice, speaker.settings, options.seed)
    plan = plan_book(book_of_sentences(options.chunks, rng), identity, Silences(), speaker.lengths)
    with tempfile.TemporaryDirectory() as folder:
        parts = spoken_book(speaker, plan, Path(folder) / "job")
    rate, free = speaker.sample_rate, Recogniser(())
    checker = BookChecker(whisper_recogniser(options.whisper) if options.whisper else TextAligner())
    began = time.process_time()
    norms = BookNorms.of(part.signals for part in parts)
    flagged, good = [], []
    for part in parts:
        problems = checker.problems(part.text, part.audio, rate, part.signals, norms)
        if problems:
            heard = free.transcribe(part.audio, rate)
            wrong = edits(words(part.text), words(heard)) / len(words(part.text))
            flagged.append(
                {
                    "text": part.text,
                    "heard": heard,
                    "share_of_words_wrong": wrong,
                    "problems": [problem.text for problem in problems],
                }
            )
        else:
            good.append(part)
    judging = (time.process_time() - began) / len(parts)
    maker, found, made, missed = DefectMaker(speaker, good, rng), Counter[str](), Counter[str](), []
    by_sound = Counter[str]()
    for index in range(options.defects):
        kind = list(maker.kinds)[index % len(maker.kinds)]
        part = rng.choice([part for part in good if len(part.words) > 4])
        audio = maker.kinds[kind](part)
        # the decoder's signals are left out, because the decoder did not make the defect
        signals = ChunkSignals.of(part.text, SpokenChunk(audio), rate)
        problems = checker.problems(part.text, audio, rate, signals, norms)
        made[kind] += 1
        found[kind] += bool(problems)
        by_sound[kind] += bool(BookChecker().problems(part.text, audio, rate, signals, norms))
        if not problems:
            missed.append({"kind": kind, "text": part.text})
    needless = [one for one in flagged if one["share_of_words_wrong"] < CONFIRMED]
    recogniser = f"whisper {options.whisper}" if options.whisper else "pocketsphinx"
    return {
        "recogniser": recogniser,
        "cpu_seconds_a_chunk": round(judging, 3),
        "bundle": synthesizer.model.name,
        "voice": options.voice,
        "preset": options.preset,
        "seed": options.seed,
        "chunks": len(parts),
        "flagged_as_they_are": len(flagged),
        "share_flagged": len(flagged) / len(parts),
        "flagged_and_heard_right": len(needless),
        "share_flagged_and_heard_right": len(needless) / len(parts),
        "defects": sum(made.values()),
        "found": sum(found.values()),
        "share_found": sum(found.values()) / sum(made.values()),
        "by_kind": {
            kind: {"made": made[kind], "found": found[kind], "found_without_recogniser": by_sound[kind]}
            for kind in made
        },
        "missed": missed,
        "flagged": flagged,
        "distribution_of_good_chunks": {} if options.whisper else distribution(good, norms, TextAligner(), rate),
    }


def whisper_recogniser(size: str) -> TranscribingRecogniser:
    model = imported(whisper_folder(size))
    return TranscribingRecogniser(Transcriber(model, load_backend("torch:cpu", model, "fp32", 1, keep=True)))


def distribution(
    parts: Sequence[SpokenPart], norms: BookNorms, aligner: TextAligner, rate: int
) -> dict[str, list[float]]:
    """Return the percentiles 1, 50, 99 and 100 of every value that has a limit, over chunks without a problem."""
    values: dict[str, list[float]] = {
        name: []
        for name in (
            "edge_db",
            "pause_s",
            "loop",
            "loudness_off_db",
            "seconds_per_letter_ratio",
            "log_probability_off",
            "misfit_nats",
            "left_over_s",
        )
    }
    for part in parts:
        sound, signals = part.signals.sound, part.signals
        values["edge_db"].append(sound.edge)
        values["pause_s"].append(sound.pause)
        values["loop"].append(float(signals.loop or 0))
        values["loudness_off_db"].append(abs(sound.loudness - (norms.loudness or 0)))
        if signals.seconds_per_letter and norms.seconds_per_letter:
            ratio = signals.seconds_per_letter / norms.seconds_per_letter
            values["seconds_per_letter_ratio"].append(max(ratio, 1 / ratio))
        fit = aligner.fit(part.text, part.audio, rate)
        values["misfit_nats"].append(worst_word(fit.words or ())[0])
        values["left_over_s"].append(left_over(fit, part.audio, rate, sound.loudness))
        values["log_probability_off"].append((norms.log_probability or 0) - (signals.log_probability or 0))
    return {name: np.percentile(found, [1, 50, 99, 100]).round(3).tolist() for name, found in values.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="heart")
    parser.add_argument("--voice", help="voice of the bundle (default: its own)")
    parser.add_argument("--preset", help="preset of the bundle, if it has presets")
    parser.add_argument("--chunks", type=int, default=240, help="approximate number of chunks in the book")
    parser.add_argument("--defects", type=int, default=200)
    parser.add_argument("--whisper", choices=("base", "tiny.en"), help="Whisper model to use instead of pocketsphinx")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    result = campaign(options)
    write_json(options.output, result)
    sys.stdout.write(
        f"{result['found']} of {result['defects']} defects found; {result['flagged_as_they_are']} of "
        f"{result['chunks']} chunks suspect as they were spoken, {result['flagged_and_heard_right']} of them heard "
        f"right by a recogniser without a text; {options.output}\n"
    )
    return 0
