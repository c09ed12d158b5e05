"""Synthesis of 24 kHz speech from text and a voice: at once, for one text or several, or as a stream."""

import secrets
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ane.audio.time_stretch import check_speed
from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.asynchronous import AsyncSpeaking
from ane.models.fed_stream import FedStream
from ane.models.lane_sharing import StepScheduler
from ane.models.recording import SoundStream
from ane.models.spoken_words import SpokenWord, delivered_words
from ane.models.tortoise.chunks import Chunk, split_into_chunks
from ane.models.tortoise.pipeline import ChunkInfo, Pipeline, Progress, VocodedChunk, no_progress
from ane.models.tortoise.randomness import Randomness
from ane.models.tortoise.ranking import check_clips
from ane.models.tortoise.result import SAMPLE_RATE, Speech
from ane.models.tortoise.settings import PRESETS, Settings
from ane.models.tortoise.shared_lanes import SharedLanePool
from ane.models.tortoise.voice_resolution import cloning_notes, resolve_voice
from ane.models.tortoise.word_times import WordTimer
from ane.system import paths
from ane.system.errors import UserError
from ane.system.iterators import closing_source
from ane.system.timeline import Timeline
from ane.text import NORMALISERS, Lexicon
from ane.text.passages import Passage, read_passages
from ane.voices import Voice


class Synthesizer(AsyncSpeaking):
    """A model on a backend. ``speak``, ``speak_all`` and ``stream`` synthesise speech."""

    def __init__(self, model: Model, backend: Backend):
        self.model, self.backend = model, backend
        self.pool: SharedLanePool | None = None
        self._timers: dict[str, WordTimer] = {}         # by normaliser; they keep the decoder's tables

    def share_lanes(self, scheduler: StepScheduler, lanes: int) -> SharedLanePool:
        """From now on ``stream`` and ``feed`` decode on common lanes (``ane.models.lane_sharing.LaneSharing``)."""
        config = self.model.config("autoregressive")
        codes = max(Settings.of(preset, self.model.settings).sampling.max_codes for preset in PRESETS)
        self.pool = SharedLanePool(self.backend, config, lanes, scheduler, min(codes, config.max_mel_tokens - 1))
        return self.pool

    def speak(self, text: str, voice: str | Voice | None = None, preset: str | None = None,
              seed: int | None = None, settings: Settings | None = None, progress: Progress = no_progress,
              timeline: Timeline | None = None, speed: float = 1.0, lexicon: Lexicon | None = None,
              ssml: bool | None = None, word_times: bool = False) -> Speech:
        """Speak ``text``.

        Args:
            text: may have pauses, [pause:1.5s], or be SSML.
            voice: a name, a path or a mix as on the command line, or a ``Voice``; None: the model's default.
            preset: a name of ``ane.models.tortoise.settings.PRESETS``, combined with the model's own settings; None:
                the model's default. Ignored when ``settings`` are given.
            seed: at least 0; None: a random one, which is in the result.
            progress: called with (phase, done, total, note) during the work; phase is "decode", "rank", "diffuse" or
                "vocode".
            timeline: records when each phase runs (None: a new one).
            speed: from 0.5 to 2, more than 1 being faster; the sound is stretched, its pitch stays.
            lexicon: respells words (``ane.text.read_lexicon``).
            ssml: whether ``text`` is SSML; None: if it begins with "<speak".
            word_times: whether to state when each word is heard (``Speech.words``), which takes slightly longer.

        Raises:
            UserError: nothing to say, markup that asks for what cannot be done, a text too long for one pass with
                splitting off, a speed out of range, an unknown or unsuitable voice, a network that the model lacks,
                out of memory.
        """
        [speech] = self.speak_all([text], voice, preset, seed, settings, progress, timeline, speed, lexicon, ssml,
                                  word_times)
        return speech

    def speak_all(self, texts: Sequence[str], voice: str | Voice | None = None, preset: str | None = None,
                  seed: int | None = None, settings: Settings | None = None, progress: Progress = no_progress,
                  timeline: Timeline | None = None, speed: float = 1.0, lexicon: Lexicon | None = None,
                  ssml: bool | None = None, word_times: bool = False) -> Iterator[Speech]:
        """Speak several texts, each as ``speak`` does with the same seed; they share the decoder's lanes.

        Work begins when the first result is requested. Results are yielded in order, each as soon as it is ready.
        """
        passages = [read_passages(text, lexicon, ssml, speed) for text in texts]
        request = Request(self, passages, voice, preset, seed, settings, timeline)
        sounds = request.pipeline(progress, word_times).sounds([chunk for chunks in request.texts for chunk in chunks])
        began = request.timeline.text_ready
        with closing_source(sounds):
            for chunks in request.texts:
                yield request.speech([next(sounds) for _ in chunks], began)
                began = request.timeline.now()

    def stream(self, text: str, voice: str | Voice | None = None, preset: str | None = None,
               seed: int | None = None, settings: Settings | None = None, progress: Progress = no_progress,
               timeline: Timeline | None = None, speed: float = 1.0, lexicon: Lexicon | None = None,
               ssml: bool | None = None, word_times: bool = False) -> "Stream":
        """Speak ``text`` and return its sound incrementally. Arguments and errors: ``speak``.

        Without diffusion the pieces join to what ``speak`` returns, up to rounding. With it, a long chunk is diffused
        in windows (``ane.models.tortoise.windows``), so its sound differs slightly.
        """
        passages = read_passages(text, lexicon, ssml, speed)
        return Stream(Request(self, [passages], voice, preset, seed, settings, timeline), progress, word_times)

    def speak_in_chunks(self, text: str, voice: str | Voice | None = None, preset: str | None = None,
                        seed: int | None = None, settings: Settings | None = None, progress: Progress = no_progress,
                        timeline: Timeline | None = None, speed: float = 1.0, lexicon: Lexicon | None = None,
                        ssml: bool | None = None) -> "Stream":
        """``speak``, but the sound is returned chunk by chunk, so that a long text takes no more memory than a short
        one. The pieces join to exactly what ``speak`` returns. Arguments and errors: ``speak``; ``best`` must be 1.
        """
        passages = read_passages(text, lexicon, ssml, speed)
        return Stream(Request(self, [passages], voice, preset, seed, settings, timeline), progress, whole_chunks=True)

    def feed(self, texts: Iterable[str], voice: str | Voice | None = None, preset: str | None = None,
             seed: int | None = None, settings: Settings | None = None, progress: Progress = no_progress,
             timeline: Timeline | None = None, speed: float = 1.0, lexicon: Lexicon | None = None,
             word_times: bool = False) -> FedStream:
        """Speak a text that arrives incrementally, such as a language model's answer, while it arrives.

        The words are those of the whole text. Its pieces are spoken with the same seed each.

        Args:
            texts: pieces of the text in order, divided anywhere. The other arguments and errors: ``speak``.
        """
        settings = settings or Settings.of(preset, self.model.settings)
        seed = secrets.randbits(32) if seed is None else seed
        timeline = timeline or Timeline()
        check_speed(speed)
        self.require(settings)
        found = self.voice(voice, Randomness(seed))
        normalise = NORMALISERS[settings.normaliser]

        def stream(text: str) -> Stream:
            return self.stream(text, found, None, seed, settings, progress, timeline, speed, lexicon, ssml=False,
                               word_times=word_times)

        return FedStream(texts, stream, normalise, lexicon, SAMPLE_RATE, timeline)

    def prepare(self, voice: str | Voice | None = None, settings: Settings | None = None) -> Voice:
        """Load the networks that the settings need and the voice, so that the first text is spoken sooner.

        Returns the voice. Errors: ``speak``.
        """
        settings = settings or Settings.of(model=self.model.settings)
        self.require(settings)
        self.backend.load(*self.needed(settings))
        split_into_chunks("1", self.model, settings)        # the library that spells numbers takes a second to load
        return self.voice(voice, Randomness(0))

    def needed(self, settings: Settings) -> list[str]:
        """Names of the networks that speaking with these settings needs."""
        needed = ["autoregressive", *(["hifigan"] if settings.diffusion is None else ["diffusion", "univnet"])]
        if settings.ranked and settings.cvvp_amount < 1:
            needed.append("clvp")
        if settings.cvvp_amount:
            needed.append("cvvp")
        return needed

    def require(self, settings: Settings) -> None:
        """Raise UserError when the model lacks a network that speaking with these settings needs."""
        for network in self.needed(settings):
            self.model.require(network)

    def word_timer(self, normaliser: str) -> WordTimer:
        """What times the words of texts that this normaliser reads."""
        if normaliser not in self._timers:
            self._timers[normaliser] = WordTimer(self.backend, self.model, normaliser)
        return self._timers[normaliser]

    def voice(self, voice: str | Voice | None, randomness: Randomness) -> Voice:
        """The voice of that name, path or mix. Raises UserError when it is unknown, unsuitable or of another model."""
        if isinstance(voice, Voice):
            voice.check_widths(self.model.widths)
            return voice
        folders = [folder for folder in (self.model.voices, paths.voices_dir()) if folder is not None]
        wanted = self.model.default_voice if voice is None else voice
        return resolve_voice(wanted, folders=folders, backend=self.backend, mel_norms=self.model.mel_norms,
                             model_id=self.model.identity, widths=self.model.widths, rng=randomness.voice())


class Request:
    """A request whose arguments have been checked: its texts as chunks, its voice, its random numbers.

    Raises:
        UserError: see ``Synthesizer.speak``.
    """

    def __init__(self, synthesizer: Synthesizer, texts: Sequence[Sequence[Passage]], voice: str | Voice | None,
                 preset: str | None, seed: int | None, settings: Settings | None, timeline: Timeline | None):
        self.synthesizer, self.model = synthesizer, synthesizer.model
        self.timeline = timeline or Timeline()
        self.timeline.mark_text_ready()
        self.settings = settings or Settings.of(preset, self.model.settings)
        self.randomness = Randomness(secrets.randbits(32) if seed is None else seed)
        for passage in chain.from_iterable(texts):
            check_speed(passage.speed)
        self.texts = [split_into_chunks(text, self.model, self.settings) for text in texts]
        synthesizer.require(self.settings)
        with self.timeline.record("voice"):
            self.voice = synthesizer.voice(voice, self.randomness)
        if self.settings.ranked:
            check_clips(self.settings.cvvp_amount, self.voice.clip_mels)

    def pipeline(self, progress: Progress, word_times: bool = False) -> Pipeline:
        return Pipeline(self.model, self.synthesizer.backend, self.voice, self.settings, self.randomness,
                        sum(map(len, self.texts)), self.timeline, progress, self.synthesizer.pool,
                        self.synthesizer.word_timer(self.settings.normaliser) if word_times else None)

    def speech(self, sounds: list[VocodedChunk], began: float) -> Speech:
        """The result for one text from its chunks' sound; ``began``: the time from which ``elapsed`` is counted."""
        self.timeline.mark_first_audio()
        audio = [np.concatenate([sound.audio[rank] for sound in sounds]) for rank in range(self.settings.best)]
        infos = [sound.info for sound in sounds]
        return Speech(audio[0], self.randomness.seed, self.voice.name, [info.chunk.text for info in infos],
                      sum(info.codes for info in infos), audio[1:], self.timeline.new_seconds_by_phase(),
                      self.timeline.now() - began, self.notes(infos), self.timeline, words=words_of(sounds),
                      decoded=[info.signals for info in infos])

    def notes(self, infos: Sequence[ChunkInfo]) -> list[str]:
        return [*cloning_notes(self.model, self.voice), *stopping_notes(infos)]


def words_of(sounds: Sequence[VocodedChunk]) -> list[SpokenWord]:
    """The words of all chunks, in the time of the chunks' sounds one after the other."""
    ends = accumulate(len(sound.audio[0]) / SAMPLE_RATE for sound in sounds)
    return [word for sound, end in zip(sounds, ends, strict=True) for word in delivered_words(
        sound.words, sound.info.chunk.delivery, sound.removed / SAMPLE_RATE, len(sound.audio[0]) / SAMPLE_RATE,
        end - len(sound.audio[0]) / SAMPLE_RATE)]


class Stream(SoundStream):
    """Sound that arrives incrementally: pieces (m,) float32 within ±1 at ``sample_rate``.

    Work is done only while the caller waits for a piece. ``codes``, ``notes``, ``seconds``, ``seconds_by_phase`` and
    ``elapsed`` are as in ``ane.models.tortoise.result.Speech``, for the pieces returned so far; ``words`` are those of
    the chunks that have been decoded, and the last of a chunk may end in the silence that was removed after it.

    Raises:
        UserError: ``settings.best`` is more than 1.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, request: Request, progress: Progress, word_times: bool = False, whole_chunks: bool = False):
        if request.settings.best > 1:
            raise UserError(f"a stream returns the best candidate only: best must be 1, got {request.settings.best}")
        self._request = request
        self._infos: list[ChunkInfo] = []
        self.words: list[SpokenWord] = []
        self.seed, self.voice, self.timeline = request.randomness.seed, request.voice.name, request.timeline
        chunks = request.texts[0]
        self.chunks = [chunk.text for chunk in chunks]
        pipeline = request.pipeline(progress, word_times)
        self._pieces = self._sounds(pipeline, chunks) if whole_chunks else pipeline.pieces(chunks, self._on_chunk)

    def __next__(self) -> np.ndarray:
        try:
            piece = next(self._pieces)
        finally:
            self.elapsed = self.timeline.now() - self.timeline.text_ready
        self._samples += len(piece)
        return piece

    def _on_chunk(self, info: ChunkInfo, words: Sequence[SpokenWord]) -> None:
        self._infos.append(info)
        self.words += words

    def _sounds(self, pipeline: Pipeline, chunks: Sequence[Chunk]) -> Generator[np.ndarray, None, None]:
        """The sound of every chunk, as soon as it is complete."""
        sounds = pipeline.sounds(chunks)
        with closing_source(sounds):
            for sound in sounds:
                self._infos.append(sound.info)
                yield sound.audio[0]
        self.timeline.mark_first_audio()        # nothing is played before all is spoken

    def close(self) -> None:
        self._pieces.close()

    @property
    def codes(self) -> int:
        return sum(info.codes for info in self._infos)

    @property
    def facts(self) -> dict[str, Any]:
        return {"seed": self.seed, "voice": self.voice, "codes": self.codes}

    @property
    def notes(self) -> list[str]:
        return self._request.notes(self._infos)


def stopping_notes(infos: Sequence[ChunkInfo]) -> list[str]:
    """A warning when a chunk's best candidate reached ``max_codes`` without a stop code."""
    chunks = [str(info.chunk.index + 1) for info in infos if not info.signals.stopped]
    if not chunks:
        return []
    return [f"chunk {', '.join(chunks)} did not end with a stop code: the speech may be cut off or ramble; "
            "try another seed, more candidates or shorter sentences"]
