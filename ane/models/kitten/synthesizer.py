"""Synthesis of 24 kHz speech with a KittenTTS model, several chunks in parallel."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio.trimming import trimmed
from ane.bundles.family import find_family
from ane.bundles.manifest import MANIFEST_FILE
from ane.models.kitten.chunking import spoken_chunks
from ane.models.kitten.espeak import load_espeak
from ane.models.kitten.model_files import KittenModel, download_model, read_model_files, repository_of
from ane.models.kitten.parallel import Parallelism, compute_in_order
from ane.models.kitten.phonemes import Phonemizer, phonemize, token_ids, without_abbreviation_dots
from ane.models.kitten.preprocessing import preprocess
from ane.models.kitten.session import KittenBackend
from ane.models.kitten.settings import KittenSettings
from ane.speech.request import Chunk, Piece, Run, SpeechRequest
from ane.speech.speaker import Speaker
from ane.speech.words import shared_time
from ane.system.errors import UserError
from ane.system.iterators import closing_source
from ane.text import nothing_to_say_error, shorten
from ane.text.passages import Passage, read_passages, whole_text, with_deliveries

SAMPLE_RATE = 24000
PUBLISHED_CUT = 5000        # samples that the published code cuts from the end of every chunk
END_SILENCE = 0.1           # seconds of silence that may stay at the end of a chunk


@dataclass(frozen=True)
class KittenChunk(Chunk):
    """A chunk with the graph's inputs.

    Attributes:
        label: its number and text, for messages.
        input_ids: (1, T) int64. style: (1, 256) float32, row ``style_row`` of the voice's table. speed: (1,) float32,
            which has the speed of its passage.
    """

    label: str
    input_ids: np.ndarray
    style_row: int
    style: np.ndarray
    speed: np.ndarray

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {"input_ids": self.input_ids, "style": self.style, "speed": self.speed}


class KittenSynthesizer(Speaker):
    """A KittenTTS model on the CPU; several threads may call it. The published graphs draw noise themselves, so only
    the length of speech is the same in every run; ``published`` texts of a few letters may have no samples.

    Args:
        phonemizer: text → IPA; None: espeak-ng, loaded with the first text. Only one thread of the process calls a
            phonemizer at a time.
        parallelism: how many chunks are computed at once.

    Raises:
        UserError: the voices or the graph are damaged or not KittenTTS's.
    """

    settings, sample_rate = KittenSettings, SAMPLE_RATE

    def __init__(self, model: KittenModel, backend: KittenBackend, phonemizer: Phonemizer | None = None,
                 parallelism: Parallelism | None = None):
        super().__init__(model, backend)
        self.voices = model.read_voices()
        self.parallelism = parallelism or Parallelism()
        self._phonemizer = phonemizer
        backend.session(self.parallelism.threads_for(self.parallelism.workers_for(2)))

    def completed(self, request: SpeechRequest) -> SpeechRequest:
        """The voice's own name; the speed is a setting here: the graph itself speaks faster."""
        settings = request.settings
        if settings.published and (request.ssml or request.lexicon):
            raise UserError(f"{'ssml' if request.ssml else 'lexicon'} has no effect with published settings: leave one "
                            "out")
        settings = settings if request.speed is None else replace(settings, speed=request.speed)
        return replace(request, settings=settings, voice=self.voices.resolve(request.voice))

    def facts(self, request: SpeechRequest) -> dict[str, Any]:
        return {"voice": request.voice, "speed": request.settings.speed, "tokens": 0}

    def normaliser(self, settings: KittenSettings) -> Callable[[str], str]:
        return preprocess

    def chunks(self, request: SpeechRequest, run: Run) -> list[KittenChunk]:
        settings, name = request.settings, request.voice
        with run.timeline.record("phonemes"):
            passages = [Passage(request.text)] if settings.published else read_passages(
                request.text, request.lexicon, request.ssml)
            found = with_deliveries(passages, lambda text: spoken_chunks(text, settings.published))
            if not found:
                raise nothing_to_say_error(whole_text(passages))
            chunks = []
            for number, (chunk, delivery) in enumerate(found, 1):
                phonemes = phonemize(self.phonemizer, chunk)
                if not settings.published:
                    phonemes = without_abbreviation_dots(chunk, phonemes)
                row = self.voices.style_row(name, len(chunk))
                chunks.append(KittenChunk(
                    chunk, f"chunk {number} of {len(found)}, {shorten(chunk)!r}", token_ids(phonemes), row,
                    self.voices.style(name, row), self.voices.speed(name, settings.speed * delivery.speed),
                    delivery=replace(delivery, speed=1.0)))
        return chunks

    def render(self, chunks: Sequence[KittenChunk], request: SpeechRequest, run: Run) -> Iterator[Piece]:
        """Each chunk as soon as it and those before it are computed, several at once."""
        workers = self.parallelism.workers_for(len(chunks))
        session = self.backend.session(self.parallelism.threads_for(workers))
        end = cut_as_published if request.settings.published else trim_end
        finished = itertools.count(1)

        def sound(chunk: KittenChunk) -> np.ndarray:
            try:
                wave = end(session.run(chunk.inputs))
            except UserError as error:
                raise UserError(f"{chunk.label}: {error}") from error
            except Exception as error:
                error.add_note(f"in {chunk.label}")
                raise
            run.progress("synthesis", next(finished), len(chunks), "")
            return wave

        waves = run.timeline.record_each("synthesis", compute_in_order(sound, chunks, workers))
        with closing_source(waves):
            for chunk, wave in zip(chunks, waves, strict=True):
                words = shared_time(chunk.text.split(), (0.0, len(wave) / SAMPLE_RATE))
                yield Piece(wave, chunk, True, list(words), {"tokens": chunk.input_ids.size})

    def prepare(self, voice: str | None = None, settings: KittenSettings | None = None) -> str:
        """Load the phonemizer, so that the first text is spoken sooner. Returns the voice's name. Errors: ``speak``."""
        phonemize(self.phonemizer, "a")
        return self.voices.resolve(voice)

    @property
    def phonemizer(self) -> Phonemizer:
        """The phonemizer; loads espeak-ng when none was given. Raises UserError when that is not installed."""
        self._phonemizer = self._phonemizer or load_espeak()
        return self._phonemizer


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
    folder = Path(os.path.expanduser(source))
    if os.path.isdir(folder):
        if revision:
            raise UserError(f"revision is for the hub; {folder} is a folder")
        bundled = os.path.isfile(folder / MANIFEST_FILE)
        model = find_family("kitten").open_bundle(folder) if bundled else read_model_files(folder)
    else:
        repository = repository_of(source) if isinstance(source, str) else None
        if repository is None:
            raise UserError(f"{source} is neither a folder nor a repository OWNER/NAME of the hub")
        model = read_model_files(download_model(repository, revision).directory)
    return KittenSynthesizer(model, KittenBackend(model), phonemizer, Parallelism(workers, threads))
