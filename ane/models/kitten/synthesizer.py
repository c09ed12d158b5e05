"""Synthesis of 24 kHz speech with a KittenTTS model."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ane.audio.trimming import trimmed
from ane.bundles.family import find_family
from ane.bundles.manifest import MANIFEST_FILE
from ane.models.kitten.chunking import spoken_chunks
from ane.models.kitten.model_files import KittenModel, download_model, read_model_files, repository_of
from ane.models.kitten.phonemes import Phonemizer, load_espeak, phonemize, without_abbreviation_dots, word_ids
from ane.models.kitten.preprocessing import preprocess
from ane.models.kitten.settings import KittenSettings
from ane.models.styletts.graph import StyleBackend
from ane.models.styletts.parallel import Parallelism
from ane.models.styletts.speaker import SAMPLE_RATE, StyleChunk, StyleSpeaker
from ane.speech.request import Run, SpeechRequest
from ane.system.errors import UserError
from ane.text import shorten
from ane.text.passages import Passage, with_deliveries

PUBLISHED_CUT = 5000        # samples that the published code cuts from the end of every chunk
END_SILENCE = 0.1           # seconds of silence that may stay at the end of a chunk


class KittenSynthesizer(StyleSpeaker):
    """A KittenTTS model. The published graphs draw noise themselves, so only the length of speech is the same in every
    run; ``published`` texts of a few letters may have no samples.

    Args:
        phonemizer: text → IPA; None: espeak-ng, loaded with the first text. Only one thread of the process calls a
            phonemizer at a time.
        parallelism: how many chunks are computed at once.

    Raises:
        UserError: the voices are damaged.
    """

    settings = KittenSettings

    def __init__(self, model: KittenModel, backend: StyleBackend, phonemizer: Phonemizer | None = None,
                 parallelism: Parallelism | None = None):
        super().__init__(model, backend, parallelism)
        self._phonemizer = phonemizer

    def completed(self, request: SpeechRequest) -> SpeechRequest:
        unused = [name for name in ("ssml", "lexicon", "cast") if getattr(request, name)]
        if request.settings.published and unused:
            raise UserError(f"{unused[0]} has no effect with published settings: leave one out")
        return super().completed(request)

    def normaliser(self, settings: KittenSettings) -> Callable[[str], str]:
        return preprocess

    def chunks(self, request: SpeechRequest, run: Run) -> list[StyleChunk]:
        settings = request.settings
        with run.timeline.record("phonemes"):
            passages = [Passage(request.text)] if settings.published else run.passages(request)
            found = with_deliveries(passages, lambda text: spoken_chunks(text, settings.published))
            chunks = []
            for number, (chunk, delivery) in enumerate(found, 1):
                phonemes = phonemize(self.phonemizer, chunk)
                if not settings.published:
                    phonemes = without_abbreviation_dots(chunk, phonemes)
                ids, spans = word_ids(phonemes, chunk)
                name = self.voice_of(delivery.voice, request, run)
                chunks.append(StyleChunk(
                    chunk, f"chunk {number} of {len(found)}, {shorten(chunk)!r}", ids,
                    *self.styles.style(name, len(chunk)), self.styles.speed(name, settings.speed * delivery.speed),
                    spans, delivery=replace(delivery, speed=1.0)))
        return chunks

    def trimmed(self, wave: np.ndarray, settings: KittenSettings) -> tuple[np.ndarray, int]:
        return (cut_as_published if settings.published else trim_end)(wave), 0

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
    model.check()
    return KittenSynthesizer(model, StyleBackend(model), phonemizer, Parallelism(workers, threads))
