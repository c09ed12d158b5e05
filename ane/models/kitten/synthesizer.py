"""Synthesis of 24 kHz speech with a KittenTTS model: at once, its chunks in parallel, or as a stream."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ane.audio.trimming import trimmed
from ane.bundles.manifest import MANIFEST_FILE
from ane.models.asynchronous import AsyncSpeaking
from ane.models.delivery import delivered_whole
from ane.models.fed_stream import FedStream
from ane.models.kitten.chunking import spoken_chunks
from ane.models.kitten.espeak import load_espeak
from ane.models.kitten.family import open_bundle
from ane.models.kitten.model_files import KittenModel, download_model, read_model_files, repository_of
from ane.models.kitten.parallel import Parallelism, compute_all, compute_in_order
from ane.models.kitten.phonemes import Phonemizer, phonemize, token_ids, without_abbreviation_dots
from ane.models.kitten.preprocessing import preprocess
from ane.models.kitten.result import SAMPLE_RATE, KittenSpeech
from ane.models.kitten.session import KittenBackend
from ane.models.kitten.settings import KittenSettings
from ane.models.recording import PhaseProgress, SoundStream, report_nothing
from ane.models.spoken_words import SpokenWord, shared_time
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
        label: its number and text, for messages.
        input_ids: (1, T) int64. style: (1, 256) float32, row ``style_row`` of the voice's table. speed: (1,) float32.
        delivery: its volume and the silence around it; its speed is in ``speed``.
    """

    text: str
    label: str
    input_ids: np.ndarray
    style_row: int
    style: np.ndarray
    speed: np.ndarray
    delivery: Delivery

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {"input_ids": self.input_ids, "style": self.style, "speed": self.speed}


class KittenSynthesizer(AsyncSpeaking):
    """A KittenTTS model on the CPU. ``speak``, ``speak_all`` and ``stream`` synthesise speech; several threads may call
    them.

    Args:
        phonemizer: text → IPA; None: espeak-ng, loaded with the first text. Only one thread of the process calls a
            phonemizer at a time.
        parallelism: how many chunks are computed at once.

    Raises:
        UserError: the voices or the graph are damaged or not KittenTTS's.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, model: KittenModel, backend: KittenBackend, phonemizer: Phonemizer | None = None,
                 parallelism: Parallelism | None = None):
        self.model, self.backend, self.voices = model, backend, model.read_voices()
        self.parallelism = parallelism or Parallelism()
        self._phonemizer = phonemizer
        backend.session(self.parallelism.threads_for(self.parallelism.workers_for(2)))

    def speak(self, text: str, voice: str | None = None, speed: float | None = None,
              settings: KittenSettings | None = None, progress: PhaseProgress = report_nothing,
              timeline: Timeline | None = None, lexicon: Lexicon | None = None,
              ssml: bool | None = None) -> KittenSpeech:
        """Speak ``text``.

        Args:
            voice: a name of ``voices.names``; None: ``voices.default``.
            speed: speed of speech, 1 as trained, 2 twice as fast; None: that of ``settings``.
            settings: None: the defaults of ``KittenSettings``.
            progress: called with (phase, done, total, note) after each chunk; phase is "synthesis".
            timeline: records when each phase runs (None: a new one).
            lexicon: respells words (``ane.text.read_lexicon``).
            ssml: whether ``text`` is SSML; None: if it begins with "<speak". Other text may have [pause:1.5s].
                ``published`` settings know no markup.

        Returns the speech; ``published`` texts of a few letters may have no samples.

        Raises:
            UserError: nothing to say, markup that asks for what cannot be done, an unknown voice, a speed out of range,
                no phonemizer, or a chunk that the graph fails on; the message has its text.
        """
        settings, timeline = with_speed(settings, speed), timeline or Timeline()
        timeline.mark_text_ready()
        with timeline.record("phonemes"):
            chunks = self.encode(text, voice, settings, lexicon, ssml)
        with timeline.record("synthesis"):
            workers = self.parallelism.workers_for(len(chunks))
            waves = compute_all(self._function(workers, len(chunks), settings, progress), chunks, workers,
                                lambda chunk: chunk.input_ids.size)
        return self._speech(chunks, waves, voice, settings, timeline, timeline.text_ready)

    def speak_all(self, texts: Sequence[str], voice: str | None = None, speed: float | None = None,
                  settings: KittenSettings | None = None, progress: PhaseProgress = report_nothing,
                  timeline: Timeline | None = None, lexicon: Lexicon | None = None,
                  ssml: bool | None = None) -> Iterator[KittenSpeech]:
        """Speak several texts, as ``speak`` does; chunks of different texts are computed at once.

        Results are yielded in order, each as soon as it is ready.
        """
        settings, timeline = with_speed(settings, speed), timeline or Timeline()
        timeline.mark_text_ready()
        with timeline.record("phonemes"):
            encoded = [self.encode(text, voice, settings, lexicon, ssml) for text in texts]
        began = timeline.text_ready
        waves = timeline.record_each("synthesis", self._waves([chunk for chunks in encoded for chunk in chunks],
                                                              settings, progress))
        with closing_source(waves):
            for chunks in encoded:
                yield self._speech(chunks, [next(waves) for _ in chunks], voice, settings, timeline, began)
                began = timeline.now()

    def stream(self, text: str, voice: str | None = None, speed: float | None = None,
               settings: KittenSettings | None = None, progress: PhaseProgress = report_nothing,
               timeline: Timeline | None = None, lexicon: Lexicon | None = None,
               ssml: bool | None = None) -> "KittenStream":
        """Speak ``text`` and return its sound chunk by chunk. Arguments and errors: ``speak``."""
        settings, timeline = with_speed(settings, speed), timeline or Timeline()
        timeline.mark_text_ready()
        with timeline.record("phonemes"):
            chunks = self.encode(text, voice, settings, lexicon, ssml)
        return KittenStream(chunks, self.voices.resolve(voice), settings.speed,
                            self._waves(chunks, settings, progress), timeline)

    def feed(self, texts: Iterable[str], voice: str | None = None, speed: float | None = None,
             settings: KittenSettings | None = None, progress: PhaseProgress = report_nothing,
             timeline: Timeline | None = None, lexicon: Lexicon | None = None) -> FedStream:
        """Speak a text that arrives in pieces, divided anywhere, while it arrives.

        Other arguments and errors: ``speak``.
        """
        settings, timeline = with_speed(settings, speed), timeline or Timeline()
        name = self.voices.resolve(voice)

        def stream(text: str) -> KittenStream:
            return self.stream(text, name, None, settings, progress, timeline, lexicon, False)

        return FedStream(texts, stream, preprocess, lexicon, SAMPLE_RATE, timeline)

    def prepare(self, voice: str | None = None, settings: KittenSettings | None = None) -> str:
        """Load the phonemizer, so that the first text is spoken sooner. Returns the voice's name. Errors: ``speak``."""
        phonemize(self.phonemizer, "a")
        return self.voices.resolve(voice)

    def encode(self, text: str, voice: str | None, settings: KittenSettings, lexicon: Lexicon | None = None,
               ssml: bool | None = None) -> list[KittenChunk]:
        """The chunks of a text with the graph's inputs, at least one. Errors: ``speak``."""
        name = self.voices.resolve(voice)
        if settings.published and (ssml or lexicon):
            raise UserError(f"{'ssml' if ssml else 'lexicon'} has no effect with published settings: leave one out")
        passages = [Passage(text)] if settings.published else read_passages(text, lexicon, ssml)
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
                replace(delivery, speed=1.0)))
        return chunks

    @property
    def phonemizer(self) -> Phonemizer:
        """The phonemizer; loads espeak-ng when none was given. Raises UserError when that is not installed."""
        self._phonemizer = self._phonemizer or load_espeak()
        return self._phonemizer

    def _waves(self, chunks: Sequence[KittenChunk], settings: KittenSettings,
               progress: PhaseProgress) -> Iterator[np.ndarray]:
        """The sound of each chunk, (n,) float32, as soon as it and those before it are computed."""
        workers = self.parallelism.workers_for(len(chunks))
        return compute_in_order(self._function(workers, len(chunks), settings, progress), chunks, workers)

    def _function(self, workers: int, count: int, settings: KittenSettings,
                  progress: PhaseProgress) -> Callable[[KittenChunk], np.ndarray]:
        """A function from a chunk, of ``count``, to its sound, (n,) float32."""
        session = self.backend.session(self.parallelism.threads_for(workers))
        end = cut_as_published if settings.published else trim_end
        finished = itertools.count(1)

        def sound(chunk: KittenChunk) -> np.ndarray:
            try:
                wave = delivered_whole(end(session.run(chunk.inputs)), chunk.delivery, SAMPLE_RATE)
            except UserError as error:
                raise UserError(f"{chunk.label}: {error}") from error
            except Exception as error:
                error.add_note(f"in {chunk.label}")
                raise
            progress("synthesis", next(finished), count, "")
            return wave

        return sound

    def _speech(self, chunks: Sequence[KittenChunk], waves: Sequence[np.ndarray], voice: str | None,
                settings: KittenSettings, timeline: Timeline, began: float) -> KittenSpeech:
        """The result for one text; ``began``: the time from which ``elapsed`` is counted."""
        timeline.mark_first_audio()
        return KittenSpeech(
            np.concatenate(waves), self.voices.resolve(voice), settings.speed, [chunk.text for chunk in chunks],
            sum(chunk.input_ids.size for chunk in chunks), timeline.new_seconds_by_phase(), timeline.now() - began,
            timeline=timeline, words=estimated_words(chunks, waves))


def with_speed(settings: KittenSettings | None, speed: float | None) -> KittenSettings:
    """The settings (None: the defaults) with this speed (None: theirs)."""
    settings = settings or KittenSettings()
    return settings if speed is None else replace(settings, speed=speed)


class KittenStream(SoundStream):
    """Sound that arrives chunk by chunk: pieces (n,) float32 at ``sample_rate``.

    ``chunks``, ``facts`` and ``notes`` are as in ``KittenSpeech``, and so are ``words`` for the pieces returned so far.
    The graph first runs when the first piece is requested.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, chunks: list[KittenChunk], voice: str, speed: float, waves: Iterator[np.ndarray],
                 timeline: Timeline):
        self.chunks, self.timeline = [chunk.text for chunk in chunks], timeline
        self._coming = iter(chunks)
        self.words: list[SpokenWord] = []
        self.facts = {"voice": voice, "speed": speed, "tokens": sum(chunk.input_ids.size for chunk in chunks)}
        self.notes: list[str] = []
        self._waves = timeline.record_each("synthesis", waves)

    def __next__(self) -> np.ndarray:
        piece = next(self._waves)
        self.timeline.mark_first_audio()
        self.elapsed = self.timeline.now() - self.timeline.text_ready
        self.words += estimated_words([next(self._coming)], [piece], self.seconds)
        self._samples += len(piece)
        return piece

    def close(self) -> None:
        """Stop the work: chunks that have not begun are not computed."""
        with closing_source(self._waves):
            pass


def estimated_words(chunks: Sequence[KittenChunk], waves: Sequence[np.ndarray],
                    offset: float = 0.0) -> list[SpokenWord]:
    """The words of chunks, which share the time of the chunk's sound by their letters; it begins at ``offset``."""
    words: list[SpokenWord] = []
    for chunk, wave in zip(chunks, waves, strict=True):
        end = offset + len(wave) / SAMPLE_RATE
        first = min(end, offset + chunk.delivery.before)
        words += shared_time(chunk.text.split(), (first, max(first, end - chunk.delivery.after)))
        offset = end
    return words


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
        model = open_bundle(folder) if bundled else read_model_files(folder)
    else:
        repository = repository_of(source) if isinstance(source, str) else None
        if repository is None:
            raise UserError(f"{source} is neither a folder nor a repository OWNER/NAME of the hub")
        model = read_model_files(download_model(repository, revision).directory)
    return KittenSynthesizer(model, KittenBackend(model), phonemizer, Parallelism(workers, threads))
