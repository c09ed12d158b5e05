"""Synthesis of 24 kHz speech with a KittenTTS model: at once, its chunks in parallel, or as a stream."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio.trimming import trimmed
from ane.bundles.bundle_json import MANIFEST_FILE
from ane.models.delivery import delivered_whole
from ane.models.fed_stream import FedStream
from ane.models.kitten.chunking import spoken_chunks
from ane.models.kitten.espeak import load_espeak
from ane.models.kitten.family import open_bundle
from ane.models.kitten.model_files import KittenFiles, download_model, read_model_files, repository_of
from ane.models.kitten.parallel import Parallelism, compute_all, compute_in_order
from ane.models.kitten.phonemes import Phonemizer, phonemize, token_ids, without_abbreviation_dots
from ane.models.kitten.preprocessing import preprocess
from ane.models.kitten.result import SAMPLE_RATE, KittenSpeech
from ane.models.kitten.session import KittenSession
from ane.models.recording import SoundStream
from ane.system.errors import UserError
from ane.system.iterators import closing_source
from ane.system.timeline import Timeline
from ane.text import Lexicon, nothing_to_say_error, shorten
from ane.text.passages import Delivery, Passage, read_passages, whole_text, with_deliveries

PUBLISHED_CUT = 5000        # samples that the published code cuts from the end of every chunk
END_SILENCE = 0.1           # seconds of silence that may stay at the end of a chunk


@dataclass(frozen=True)
class KittenChunk:
    """A chunk with the graph's inputs.

    Attributes:
        input_ids: (1, T) int64. style: (1, 256) float32, row ``style_row`` of the voice's table. speed: (1,) float32.
        delivery: its volume and the silence around it; the graph's speed is that of ``speed``.
    """

    index: int
    text: str
    input_ids: np.ndarray
    style_row: int
    style: np.ndarray
    speed: np.ndarray
    delivery: Delivery

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {"input_ids": self.input_ids, "style": self.style, "speed": self.speed}


class KittenSynthesizer:
    """A KittenTTS model on the CPU. ``speak`` and ``stream`` synthesise speech; both may be called by several threads.

    Args:
        phonemizer: text → IPA; None: espeak-ng, loaded with the first text. Only one thread of the process calls a
            phonemizer at a time.
        parallelism: how many chunks are computed at once.

    Raises:
        UserError: the voices or the graph are damaged or not KittenTTS's.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, files: KittenFiles, phonemizer: Phonemizer | None = None,
                 parallelism: Parallelism | None = None):
        self.files, self.name, self.voices = files, files.name, files.voices()
        self.parallelism = parallelism or Parallelism()
        self._phonemizer = phonemizer
        self._sessions: dict[int | None, KittenSession] = {}       # by threads
        self.session(self.parallelism.threads_for(self.parallelism.workers_for(2)))

    def speak(self, text: str, voice: str | None = None, speed: float = 1.0, published: bool = False,
              timeline: Timeline | None = None, lexicon: Lexicon | None = None,
              ssml: bool | None = None) -> KittenSpeech:
        """Speak ``text``.

        Args:
            voice: a name of ``voices.names``; None: ``voices.default``.
            speed: more than 1 is faster; multiplied by the voice's own factor.
            published: exactly the chunks and the cut of KittenTTS 0.8.1: each sentence on its own, without its mark,
                5000 samples less; no markup. False: sentences keep their marks, and silence at the end of a chunk is
                trimmed.
            timeline: records when each phase runs (None: a new one).
            lexicon: respells words (``ane.text.read_lexicon``).
            ssml: whether ``text`` is SSML; None: if it begins with "<speak". Other text may have [pause:1.5s].

        Returns the speech; ``published`` texts of a few letters may have no samples.

        Raises:
            UserError: nothing to say, markup that asks for what cannot be done, an unknown voice, a speed out of range,
                no phonemizer, or a chunk that the graph fails on; the message has its text.
        """
        timeline = timeline or Timeline()
        timeline.mark_text_ready()
        with timeline.record("phonemes"):
            chunks = self.prepare(text, voice, speed, published, lexicon, ssml)
        with timeline.record("synthesis"):
            workers = self.parallelism.workers_for(len(chunks))
            waves = compute_all(self._function(workers, len(chunks), published), chunks, workers,
                                lambda chunk: chunk.input_ids.size)
        timeline.mark_first_audio()
        return KittenSpeech(
            np.concatenate(waves), 0, self.voices.resolve(voice), [chunk.text for chunk in chunks],
            sum(chunk.input_ids.size for chunk in chunks), seconds_by_phase=timeline.seconds_by_phase(),
            elapsed=timeline.now() - timeline.text_ready, timeline=timeline)

    def stream(self, text: str, voice: str | None = None, speed: float = 1.0, published: bool = False,
               timeline: Timeline | None = None, lexicon: Lexicon | None = None,
               ssml: bool | None = None) -> "KittenStream":
        """Speak ``text`` and return its sound chunk by chunk. Arguments and errors: ``speak``."""
        timeline = timeline or Timeline()
        timeline.mark_text_ready()
        with timeline.record("phonemes"):
            chunks = self.prepare(text, voice, speed, published, lexicon, ssml)
        workers = self.parallelism.workers_for(len(chunks))
        waves = compute_in_order(self._function(workers, len(chunks), published), chunks, workers)
        return KittenStream(chunks, self.voices.resolve(voice), waves, timeline)

    def feed(self, texts: Iterable[str], voice: str | None = None, speed: float = 1.0, timeline: Timeline | None = None,
             lexicon: Lexicon | None = None) -> FedStream:
        """Speak a text that arrives in pieces, divided anywhere, while it arrives.

        Other arguments and errors: ``speak``.
        """
        timeline = timeline or Timeline()
        self.voices.speed(self.voices.resolve(voice), speed)
        return FedStream(texts, lambda text: self.stream(text, voice, speed, False, timeline, lexicon, False),
                         preprocess, lexicon, SAMPLE_RATE, timeline)

    def prepare(self, text: str, voice: str | None = None, speed: float = 1.0, published: bool = False,
                lexicon: Lexicon | None = None, ssml: bool | None = None) -> list[KittenChunk]:
        """The chunks of a text with the graph's inputs, at least one. Arguments and errors: ``speak``."""
        name = self.voices.resolve(voice)
        if published and (ssml or lexicon):
            raise UserError("published has neither SSML nor a lexicon: leave out ssml and lexicon")
        passages = [Passage(text)] if published else read_passages(text, lexicon, ssml)
        found = with_deliveries(passages, lambda text: spoken_chunks(text, published))
        if not found:
            raise nothing_to_say_error(whole_text(passages))
        chunks = []
        for index, (chunk, delivery) in enumerate(found):
            factor = self.voices.speed(name, speed * delivery.speed)
            phonemes = phonemize(self.phonemizer, chunk)
            if not published:
                phonemes = without_abbreviation_dots(chunk, phonemes)
            row = self.voices.style_row(name, len(chunk))
            chunks.append(KittenChunk(index, chunk, token_ids(phonemes), row, self.voices.style(name, row), factor,
                                      replace(delivery, speed=1.0)))
        return chunks

    @property
    def phonemizer(self) -> Phonemizer:
        """The phonemizer; loads espeak-ng when none was given. Raises UserError when that is not installed."""
        self._phonemizer = self._phonemizer or load_espeak()
        return self._phonemizer

    def session(self, threads: int | None) -> KittenSession:
        """The session whose runs use that many threads, loaded if it is not."""
        if threads not in self._sessions:
            self._sessions[threads] = KittenSession(self.files.graph, threads)
        return self._sessions[threads]

    def _function(self, workers: int, count: int, published: bool) -> Callable[[KittenChunk], np.ndarray]:
        """A function from a chunk to its sound, (n,) float32."""
        session = self.session(self.parallelism.threads_for(workers))
        end = cut_as_published if published else trim_end

        def sound(chunk: KittenChunk) -> np.ndarray:
            try:
                return delivered_whole(end(session.run(chunk.inputs)), chunk.delivery, SAMPLE_RATE)
            except UserError as error:
                raise UserError(f"chunk {chunk.index + 1} of {count}, {shorten(chunk.text)!r}: {error}") from error
            except Exception as error:
                error.add_note(f"in chunk {chunk.index + 1} of {count}, {shorten(chunk.text)!r}")
                raise

        return sound


class KittenStream(SoundStream):
    """Sound that arrives chunk by chunk: pieces (n,) float32 at ``sample_rate``.

    The other attributes are as in ``KittenSpeech``, for the pieces returned so far. The graph first
    runs when the first piece is requested.
    """

    sample_rate = SAMPLE_RATE
    seed = 0

    def __init__(self, chunks: list[KittenChunk], voice: str, waves: Iterator[np.ndarray], timeline: Timeline):
        self.chunks, self.voice, self.timeline = [chunk.text for chunk in chunks], voice, timeline
        self.codes = sum(chunk.input_ids.size for chunk in chunks)
        self.notes: list[str] = []
        self._waves = timeline.record_each("synthesis", waves)

    def __next__(self) -> np.ndarray:
        piece = next(self._waves)
        self.timeline.mark_first_audio()
        self.elapsed = self.timeline.now() - self.timeline.text_ready
        self._samples += len(piece)
        return piece

    @property
    def facts(self) -> dict[str, Any]:
        return {"seed": self.seed, "voice": self.voice, "codes": self.codes}

    def close(self) -> None:
        """Stop the work: chunks that have not begun are not computed."""
        with closing_source(self._waves):
            pass


def cut_as_published(wave: np.ndarray) -> np.ndarray:
    """The waveform (S,) without its last 5000 samples; empty when it has no more."""
    return wave[:max(0, len(wave) - PUBLISHED_CUT)]


def trim_end(wave: np.ndarray) -> np.ndarray:
    """The waveform (S,) within ±1, with at most ``END_SILENCE`` seconds of silence at its end."""
    if not len(wave):
        return wave
    return trimmed(np.clip(wave, -1, 1), (len(wave) / SAMPLE_RATE, END_SILENCE))


def open_kitten(source: str | Path, phonemizer: Phonemizer | None = None, workers: int | None = None,
                threads: int | None = None, revision: str | None = None) -> KittenSynthesizer:
    """Open a KittenTTS model.

    Args:
        source: a folder with config.json, the graph and the voices; a bundle of such a model; or a Hugging Face
            repository, "OWNER/NAME" or a NAME of KittenML's, which is downloaded.
        phonemizer: text → IPA; None: espeak-ng, which the extra ``kitten`` installs.
        workers: chunks computed at once, at most one per core; None: one per core.
        threads: cores for each of them; None: one where several are computed at once, else all.
        revision: branch, tag or commit on the hub.

    Raises:
        UserError: no such model, a file of it is missing, damaged or not KittenTTS's, or the hub cannot be reached.
    """
    parallelism = Parallelism(workers, threads)
    folder = Path(os.path.expanduser(source))
    if os.path.isdir(folder):
        if revision:
            raise UserError(f"revision is for the hub; {folder} is a folder")
        bundled = os.path.isfile(folder / MANIFEST_FILE)
        files = open_bundle(folder) if bundled else read_model_files(folder)
        return KittenSynthesizer(files, phonemizer, parallelism)
    repository = repository_of(source) if isinstance(source, str) else None
    if repository is None:
        raise UserError(f"{source} is neither a folder nor a repository OWNER/NAME of the hub")
    return KittenSynthesizer(read_model_files(download_model(repository, revision).directory), phonemizer, parallelism)
