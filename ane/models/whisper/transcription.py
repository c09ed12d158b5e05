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
from ane.system.errors import NotFoundError, UserError

DEFAULT_MODEL = "whisper"
SILENT_PEAK = 1e-5  # −100 dBFS; windows with a lower peak are skipped, because Whisper would invent text for them
PROMPT_TEMPERATURE = 0.5  # text that was decoded at a higher temperature is not used as a prompt for the next window

Progress = Callable[[float, float], None]  # takes the seconds that are done, and the length of the recording in seconds


@validated
class TranscriptionOptions:
    """Options for transcribing a recording. The defaults are the same as in openai-whisper's ``transcribe``.

    ``None`` turns a threshold off. ``DecodingOptions`` explains the options for decoding a single window.
    """

    language: str | None = None  # code, name or locale, stored as the code; None detects it from the first window
    task: Literal["transcribe", "translate"] = "transcribe"
    # A window is decoded at these temperatures, one after the other, until its text passes the thresholds.
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        default=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), min_length=1
    )
    best_of: int = Field(default=5, ge=1)
    beam_size: int | None = Field(default=None, ge=1)
    max_compression_ratio: float | None = 2.4  # text that zlib compresses better is repetitive, and decoded again
    min_log_probability: float | None = -1.0  # a window with a lower average log-probability is decoded again
    max_no_speech: float | None = 0.6  # a window with a higher probability of silence, and improbable text, is silent
    condition_on_previous_text: bool = True  # whether the text of earlier windows is the prompt of the next window
    prompt: str = ""  # prompt of the first window, for example names in their correct spelling
    word_times: bool = False  # whether to compute word times; segments and windows then end where a word ends
    seed: int = 0

    def __post_init__(self) -> None:
        if self.language is not None:
            object.__setattr__(self, "language", language_code(self.language))

    def must_retry(self, decoded: DecodedWindow, text: str) -> bool:
        """Return whether the text fails the thresholds, so that the window is decoded again at the next temperature."""
        repetitive = self.max_compression_ratio is not None and compression_ratio(text) > self.max_compression_ratio
        improbable = self.min_log_probability is not None and decoded.average_log_probability < self.min_log_probability
        return (repetitive or improbable) and not (improbable and self._no_speech(decoded))

    def has_no_speech(self, decoded: DecodedWindow) -> bool:
        """Return whether the window has no speech, so that its text is dropped."""
        return self._no_speech(decoded) and (
            self.min_log_probability is None or not decoded.average_log_probability > self.min_log_probability
        )

    def _no_speech(self, decoded: DecodedWindow) -> bool:
        return self.max_no_speech is not None and decoded.no_speech_probability > self.max_no_speech


def open_whisper(model: str | Path | None) -> Bundle:
    """Open a bundle by name or path. ``None`` means the bundle ``DEFAULT_MODEL``.

    Raises:
        NotFoundError: The bundle does not exist.
    """
    if model is None and DEFAULT_MODEL not in bundle_names():
        raise NotFoundError(
            f"model must name a Whisper bundle: `ane import openai/whisper-base.en -o {DEFAULT_MODEL}` makes the "
            "bundle that is used without a name",
            "model",
        )
    return open_model(DEFAULT_MODEL if model is None else model)


class Transcriber:
    """A Whisper model that is loaded on a backend and can transcribe.

    Raises:
        UserError: The model is not Whisper, or its tokenizer is missing or damaged.
    """

    def __init__(self, model: Bundle, backend: Backend):
        if model.family.name != "whisper":
            raise UserError(f"{model.name} cannot transcribe, because it is a {model.family.title} model, not Whisper")
        self.model, self.backend = model, backend
        self.encoder_config, self.decoder_config = model.config("encoder"), model.config("decoder")
        self.special = SpecialTokens.of(self.decoder_config.n_vocab)
        self.tokenizer = WhisperTokenizer(model.tokenizer, self.special.end)
        self.window_frames = 2 * self.encoder_config.n_audio_ctx
        self._decoders: dict[int, WindowDecoder] = {}

    @cached_property
    def aligner(self) -> WordAligner:
        """The object that computes the times of words.

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

        The transcript of silence, or of audio without samples, is empty. ``progress`` is called after each window.

        Raises:
            UserError: A sample is NaN or infinite. Or the model does not know the language. Or the options ask for a
                translation, and the model knows only English.
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
        """Transcribe like ``transcribe``, but as a generator that pauses after each window.

        The generator yields the seconds that are done and the length of the recording in seconds, and returns the
        transcript. It calls ``heard`` with each segment.
        """
        options = options or TranscriptionOptions()
        if options.language is not None and self.special.multilingual:
            self.special.language(options.language)
        if not self.special.multilingual and options.language not in (None, "en"):
            raise UserError(
                f"language must be en, because {self.model.name} knows only English, got {options.language!r}",
                "language",
            )
        if not self.special.multilingual and options.task == "translate":
            raise UserError(
                f"task must be transcribe, because {self.model.name} knows only English and cannot translate", "task"
            )
        if not np.isfinite(audio).all():
            raise UserError("audio has NaN or infinite samples: export the recording again", "audio")
        samples = resample(audio, rate, RATE) if len(audio) else np.zeros(0, np.float32)
        return (yield from RecordingTranscription(self, samples, options).transcript(heard))

    def decoder(self, candidates: int) -> WindowDecoder:
        """Return the decoder for windows with this many candidates.

        The first call creates the decoder, and later calls reuse it.
        """
        if candidates not in self._decoders:
            self._decoders[candidates] = WindowDecoder(self.backend, self.decoder_config, self.special, candidates)
        return self._decoders[candidates]


class RecordingTranscription:
    """Transcribes one recording, and holds the progress.

    Args:
        transcriber: Transcriber with the model and its decoders.
        samples: The recording, (S,) float32 at 16 kHz.
        options: Options of the transcription.
    """

    def __init__(self, transcriber: Transcriber, samples: np.ndarray, options: TranscriptionOptions):
        self.transcriber, self.samples, self.options = transcriber, samples, options
        self.tokenizer, self.special = transcriber.tokenizer, transcriber.special
        self.window_frames = transcriber.window_frames
        self.frames = len(samples) // HOP
        self.language = "en" if not self.special.multilingual else options.language or ""
        self.suppressed = suppressed_tokens(self.special, self.tokenizer.non_speech())
        self.tokens = self.tokenizer.encode(" " + options.prompt.strip()) if options.prompt.strip() else []
        self.last_speech = 0.0  # end of the last word in seconds, if word_times is set
        self.prompt_start = 0  # index in ``tokens`` at which the next window's prompt begins

    def transcript(self, heard: Callable[[TranscriptSegment], Any]) -> Generator[tuple[float, float], None, Transcript]:
        """Transcribe all windows. Yields the progress after each window, and returns the transcript."""
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
        """Transcribe window after window.

        For each window, this yields the segments, and then the pair of the seconds that are done and the length of the
        recording in seconds.
        """
        mel = None
        position = 0  # start of the window in mel frames
        while position < self.frames:
            frames = min(self.window_frames, self.frames - position)
            advance = frames
            if np.abs(self.samples[position * HOP : (position + frames) * HOP]).max() > SILENT_PEAK:
                if mel is None:
                    mel = log_mel(self.samples, self.transcriber.encoder_config.n_mels, self.window_frames * HOP)
                window, states = mel[:, position : position + self.window_frames], None
                if (
                    not self.language
                ):  # detect it from a whole window, with silence after the end, as openai-whisper does
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
        """Encode the mel of a window, (bands, 2N), to states (1, N, D)."""
        return self.transcriber.backend.run("encoder", mel=np.ascontiguousarray(mel[None]))

    def _decode(self, states: np.ndarray, position: int) -> DecodedWindow:
        """Decode a window from its states (1, N, D), at rising temperatures until its text passes the thresholds."""
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
        """Split a decoded window into segments.

        Returns them, and the number of mel frames from the start of this window to the start of the next one.
        """
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
        """Compute the times of the segments' words.

        Returns the segments with words, and the number of mel frames from the start of this window to the start of the
        next window. The next window begins after the last word, unless the tokens say that the rest of this window has
        no text.
        """
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
        """Yield the segments that have text and a duration. The next window's prompt gets their tokens."""
        for segment in segments:
            if segment.start < segment.end and segment.text.strip():
                self.tokens += segment.tokens
                yield segment
        if not self.options.condition_on_previous_text or decoded.temperature > PROMPT_TEMPERATURE:
            self.prompt_start = len(self.tokens)


def compression_ratio(text: str) -> float:
    """Return the factor by which zlib shrinks the text in UTF-8. The factor is high for repetitive text."""
    data = text.strip().encode()
    return len(data) / len(zlib.compress(data))
