"""Transcribe recordings of any length, window by window (openai/whisper transcribe.py)."""

import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ane.audio.reader import resample
from ane.backends.base import Backend
from ane.bundles import Bundle, bundle_names, open_model
from ane.models.whisper.decoding import DecodedWindow, DecodingOptions, WindowDecoder, WindowText
from ane.models.whisper.features import FRAME_SECONDS, HOP, RATE, log_mel, pad_or_cut
from ane.models.whisper.languages import language_code
from ane.models.whisper.tokens import (
    SpecialTokens,
    WhisperTokenizer,
    ends_with_single_timestamp,
    split_segments,
    suppressed_tokens,
)
from ane.models.whisper.transcript import Transcript, TranscriptSegment
from ane.models.whisper.words import WordAligner, add_words
from ane.system.checked import validated
from ane.system.errors import UserError

DEFAULT_MODEL = "whisper"
SILENT_PEAK = 1e-5  # −100 dBFS: a window below it has no sound, and Whisper would invent text for it
PROMPT_TEMPERATURE = 0.5  # text decoded at a higher temperature is no prompt for the next window

Progress = Callable[[float, float], None]  # takes the seconds done, and the length of the recording in seconds


@validated
class TranscriptionOptions:
    """How to transcribe a recording. The defaults are openai-whisper's defaults for ``transcribe``.

    None turns a threshold off. ``DecodingOptions`` explains the options of a single window.
    """

    language: str | None = None  # a code, name or locale, which becomes the code. None detects it in the first window
    task: Literal["transcribe", "translate"] = "transcribe"
    # each window is decoded at these temperatures, in this order, until its text passes the thresholds
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        default=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), min_length=1
    )
    best_of: int = Field(default=5, ge=1)
    beam_size: int | None = Field(default=None, ge=1)
    max_compression_ratio: float | None = 2.4  # text that compresses better is repetitive
    min_log_probability: float | None = -1.0  # a window with a lower average is decoded again
    max_no_speech: float | None = 0.6  # an improbable window above it has no speech
    condition_on_previous_text: bool = True  # whether a window gets the text before it as its prompt
    prompt: str = ""  # prompt of the first window, such as names in their right spelling
    word_times: bool = False  # whether to time words; segments and windows then end with a word
    seed: int = 0

    def __post_init__(self) -> None:
        if self.language is not None:
            object.__setattr__(self, "language", language_code(self.language))

    def must_retry(self, decoded: DecodedWindow, text: str) -> bool:
        """Return whether to decode the window again, at the next temperature."""
        repetitive = self.max_compression_ratio is not None and compression_ratio(text) > self.max_compression_ratio
        improbable = self.min_log_probability is not None and decoded.average_log_probability < self.min_log_probability
        return (repetitive or improbable) and not (improbable and self._no_speech(decoded))

    def has_no_speech(self, decoded: DecodedWindow) -> bool:
        """Return whether the window has no speech. Its text is dropped then."""
        return self._no_speech(decoded) and (
            self.min_log_probability is None or not decoded.average_log_probability > self.min_log_probability
        )

    def _no_speech(self, decoded: DecodedWindow) -> bool:
        return self.max_no_speech is not None and decoded.no_speech_probability > self.max_no_speech


def open_whisper(model: str | Path | None) -> Bundle:
    """Open a bundle by name or path. None opens ``DEFAULT_MODEL``.

    Raises:
        UserError: There is no such bundle.
    """
    if model is None and DEFAULT_MODEL not in bundle_names():
        raise UserError(
            f"model must name a bundle of Whisper: `ane import openai/whisper-base.en -o {DEFAULT_MODEL}` "
            "stores one that needs no name",
            "model",
        )
    return open_model(DEFAULT_MODEL if model is None else model)


class Transcriber:
    """Transcribe with a Whisper model on a backend.

    Raises:
        UserError: The model is not Whisper, or its tokenizer is missing or damaged.
    """

    def __init__(self, model: Bundle, backend: Backend):
        if model.family.name != "whisper":
            raise UserError(f"{model.name} is a {model.family.title} model, not Whisper: it cannot transcribe")
        self.model, self.backend = model, backend
        self.encoder_config, self.decoder_config = model.config("encoder"), model.config("decoder")
        self.special = SpecialTokens.of(self.decoder_config.n_vocab)
        self.tokenizer = WhisperTokenizer(model.tokenizer, self.special.end)
        self.window_frames = 2 * self.encoder_config.n_audio_ctx
        self._decoders: dict[int, WindowDecoder] = {}

    @cached_property
    def aligner(self) -> WordAligner:
        """The aligner that times words.

        Raises:
            UserError: The backend cannot return attention scores.
        """
        return WordAligner(self.backend, self.decoder_config, self.special, self.tokenizer)

    def transcribe(
        self,
        audio: np.ndarray,
        rate: int,
        options: TranscriptionOptions | None = None,
        progress: Progress = lambda done, total: None,
    ) -> Transcript:
        """Transcribe audio (S,) float32 mono at ``rate`` Hz.

        Silence, or audio without samples, gives an empty transcript. ``progress`` is called after each window.

        Raises:
            UserError: There are NaN or infinite samples, the language is unknown, or an English-only model is asked to
                translate.
        """
        work = self.transcribing(audio, rate, options)
        while True:
            try:
                progress(*next(work))
            except StopIteration as end:
                return end.value

    def transcribing(
        self,
        audio: np.ndarray,
        rate: int,
        options: TranscriptionOptions | None = None,
        heard: Callable[[TranscriptSegment], Any] = lambda segment: None,
    ) -> Generator[tuple[float, float], None, Transcript]:
        """Transcribe like ``transcribe``, and return the transcript, but stop after each window.

        Yields the seconds done and the length of the recording in seconds. ``heard`` is called with each segment.
        """
        options = options or TranscriptionOptions()
        if options.language is not None and self.special.multilingual:
            self.special.language(options.language)
        if not self.special.multilingual and options.language not in (None, "en"):
            raise UserError(
                f"language must be en: {self.model.name} knows English only, got {options.language!r}", "language"
            )
        if not self.special.multilingual and options.task == "translate":
            raise UserError(
                f"task must be transcribe: {self.model.name} knows English only and cannot translate", "task"
            )
        if not np.isfinite(audio).all():
            raise UserError("audio must have finite samples, it has NaN or infinite ones; export it again", "audio")
        samples = resample(audio, rate, RATE) if len(audio) else np.zeros(0, np.float32)
        return (yield from RecordingTranscription(self, samples, options).transcript(heard))

    def decoder(self, candidates: int) -> WindowDecoder:
        """Return the decoder for a window with so many candidates. Each decoder is made once."""
        if candidates not in self._decoders:
            self._decoders[candidates] = WindowDecoder(self.backend, self.decoder_config, self.special, candidates)
        return self._decoders[candidates]


class RecordingTranscription:
    """The transcription of one recording.

    Args:
        transcriber: The model and its decoders.
        samples: The recording, (S,) float32 at 16 kHz.
        options: How to transcribe it.
    """

    def __init__(self, transcriber: Transcriber, samples: np.ndarray, options: TranscriptionOptions):
        self.transcriber, self.samples, self.options = transcriber, samples, options
        self.tokenizer, self.special = transcriber.tokenizer, transcriber.special
        self.window_frames = transcriber.window_frames
        self.frames = len(samples) // HOP
        self.language = "en" if not self.special.multilingual else options.language or ""
        self.suppressed = suppressed_tokens(self.special, self.tokenizer.non_speech())
        self.tokens = self.tokenizer.encode(" " + options.prompt.strip()) if options.prompt.strip() else []
        self.last_speech = 0.0  # end of the last word in seconds, if words are timed
        self.prompt_start = 0  # index in ``tokens`` at which the next window's prompt begins

    def transcript(self, heard: Callable[[TranscriptSegment], Any]) -> Generator[tuple[float, float], None, Transcript]:
        """Transcribe all windows: yield the progress after each, and return the transcript."""
        first, segments = len(self.tokens), list[TranscriptSegment]()
        for item in self._windows():
            if isinstance(item, TranscriptSegment):
                segments.append(item)
                heard(item)
            else:
                yield item
        text = self.tokenizer.decode(self.tokens[first:]).strip()
        return Transcript(text, self.language, len(self.samples) / RATE, tuple(segments))

    def _windows(self) -> Iterator[TranscriptSegment | tuple[float, float]]:
        """Yield the segments of a window, then the seconds done and the length of the recording, for each window."""
        mel = None
        position = 0  # in frames
        while position < self.frames:
            frames = min(self.window_frames, self.frames - position)
            advance = frames
            if np.abs(self.samples[position * HOP : (position + frames) * HOP]).max() > SILENT_PEAK:
                if mel is None:
                    mel = log_mel(self.samples, self.transcriber.encoder_config.n_mels, self.window_frames * HOP)
                window, states = mel[:, position : position + self.window_frames], None
                if not self.language:  # detected with the silence after the end, as in openai-whisper
                    states = self._encoded(window)
                    decoder = self.transcriber.decoder(self.options.beam_size or 1)
                    decoder.set_states(states)
                    self.language = next(iter(decoder.language_probabilities()))
                if states is None or frames < self.window_frames:
                    states = self._encoded(pad_or_cut(window[:, :frames], self.window_frames))
                decoded = self._decode(states, position)
                if not self.options.has_no_speech(decoded):
                    segments, advance = self._split(decoded, position, frames)
                    if self.options.word_times:
                        segments, advance = self._time_words(segments, decoded, states[0], position, frames, advance)
                    yield from self._keep(segments, decoded)
            position = min(position + advance, self.frames)
            yield position * FRAME_SECONDS, self.frames * FRAME_SECONDS

    def _encoded(self, mel: np.ndarray) -> np.ndarray:
        """Encode a window: (bands, 2N) → states (1, N, D)."""
        return self.transcriber.backend.run("encoder", mel=np.ascontiguousarray(mel[None]))

    def _decode(self, states: np.ndarray, position: int) -> DecodedWindow:
        """Decode a window with the states (1, N, D), at rising temperatures until its text is reliable."""
        text = WindowText(tuple(self.tokens[self.prompt_start :]), first_frame=position)
        shared = ("task", "best_of", "beam_size", "seed")
        base = DecodingOptions(
            self.language,
            suppressed=self.suppressed,
            blank=self.tokenizer.blank(),
            **{name: getattr(self.options, name) for name in shared},
        )
        decoder = None
        for temperature in self.options.temperatures:
            options = replace(base, temperature=temperature)
            previous, decoder = decoder, self.transcriber.decoder(options.candidates)
            if decoder is not previous:
                decoder.set_states(states)
            decoded = decoder.decode(text, options)
            if not self.options.must_retry(decoded, self.tokenizer.decode(decoded.tokens)):
                break
        return decoded

    def _split(self, decoded: DecodedWindow, position: int, frames: int) -> tuple[list[TranscriptSegment], int]:
        """Return a decoded window's segments, and the frames from its start to the start of the next window."""
        parts, advance = split_segments(decoded.tokens, self.special.timestamps, frames, FRAME_SECONDS)
        offset, ratio = position * FRAME_SECONDS, compression_ratio(self.tokenizer.decode(decoded.tokens))
        return [
            TranscriptSegment(
                round(offset + part.start, 2),
                round(offset + part.end, 2),
                self.tokenizer.decode(part.tokens),
                part.tokens,
                decoded.temperature,
                decoded.average_log_probability,
                decoded.no_speech_probability,
                ratio,
                seek=position,
            )
            for part in parts
        ], advance

    def _time_words(
        self,
        segments: list[TranscriptSegment],
        decoded: DecodedWindow,
        states: np.ndarray,
        position: int,
        frames: int,
        advance: int,
    ) -> tuple[list[TranscriptSegment], int]:
        """Time the words of the segments. The next window begins after the last word, unless this one has no more."""
        text = [token for segment in segments for token in segment.tokens if token < self.special.end]
        words = self.transcriber.aligner.align(text, states, frames, self.language, self.options.task)
        segments = add_words(segments, words, self.special.end, position * FRAME_SECONDS, self.last_speech)
        timed = [word.end for segment in segments for word in segment.words or ()]
        self.last_speech = timed[-1] if timed else segments[-1].end
        after = round(self.last_speech / FRAME_SECONDS) - position
        if after > 0 and not ends_with_single_timestamp(decoded.tokens, self.special.timestamps):
            advance = after
        return segments, advance

    def _keep(self, segments: list[TranscriptSegment], decoded: DecodedWindow) -> Iterator[TranscriptSegment]:
        """Yield the segments that have text and a duration. Their tokens become the prompt of later windows."""
        for segment in segments:
            if segment.start < segment.end and segment.text.strip():
                self.tokens += segment.tokens
                yield segment
        if not self.options.condition_on_previous_text or decoded.temperature > PROMPT_TEMPERATURE:
            self.prompt_start = len(self.tokens)


def compression_ratio(text: str) -> float:
    """Return how many times smaller zlib makes the text in UTF-8. The ratio is high for repetitive text."""
    data = text.strip().encode()
    return len(data) / len(zlib.compress(data))
