"""Synthesis of 22.05 kHz speech from text: the text side, the length regulator, the mel side, the vocoder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

import numpy as np

from ane.audio.griffin_lim import griffin_lim
from ane.backends.base import Backend
from ane.bundles import Model
from ane.models.asynchronous import AsyncSpeaking
from ane.models.delivery import delivered, delivered_whole
from ane.models.fastspeech.chunks import SymbolChunk, halve, split_into_symbols
from ane.models.fastspeech.regulator import alignment_matrix, durations, length_mask, repeats
from ane.models.fastspeech.result import HIGHEST, HOP, SAMPLE_RATE, FastSpeechResult
from ane.models.fastspeech.settings import FastSpeechSettings
from ane.models.fastspeech.stream import FastSpeechStream, StreamedSound
from ane.models.fastspeech.text import text_to_ids, unknown_phonemes
from ane.models.fastspeech.word_times import chunk_words, words_of
from ane.models.fed_stream import FedStream
from ane.models.recording import PhaseProgress, report_nothing
from ane.models.spoken_words import delivered_words
from ane.models.vocoders.streaming import FIRST_LENGTHS, vocoded, vocoded_in_calls
from ane.models.vocoders.waveglow import SIGMA
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from ane.text import Lexicon, normalise_upstream, shorten
from ane.text.passages import read_passages

NO_VOCODER = ("this model has no vocoder, so Griffin-Lim made the sound, which is rough: import the model again with "
              "--vocoder and a HiFi-GAN or WaveGlow checkpoint")
VOCODERS = frozenset(("vocoder", "waveglow"))


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk after the text side: its states (T, C) float32 and the frames of each symbol, (T,) int64."""

    chunk: SymbolChunk
    states: np.ndarray
    repeats: np.ndarray

    @property
    def frames(self) -> int:
        return int(self.repeats.sum())


class FastSpeechSynthesizer(AsyncSpeaking):
    """A FastSpeech model on a backend. ``speak``, ``speak_all`` and ``stream`` synthesise speech.

    Attributes:
        most_symbols, most_frames: of one pass: the model's positions, or the largest buckets of its packages.
    """

    def __init__(self, model: Model, backend: Backend):
        self.model, self.backend = model, backend
        positions: int = model.config("fastspeech").max_seq_len
        self.most_symbols = min(positions, backend.longest("text", "symbols") or positions)
        self.most_frames = min(positions, backend.longest("mel", "frames") or positions)

    def speak(self, text: str, speed: float | None = None, settings: FastSpeechSettings | None = None,
              progress: PhaseProgress = report_nothing, timeline: Timeline | None = None,
              lexicon: Lexicon | None = None, ssml: bool | None = None) -> FastSpeechResult:
        """Speak ``text``: English, and ARPAbet phonemes in braces. The same text and seed give the same sound.

        Args:
            speed: speed of speech, 1 as trained, 2 twice as fast; None: that of ``settings``.
            settings: None: the defaults of ``FastSpeechSettings``.
            progress: called with (phase, done, total, note) during the work; phase is "text", "mel" or "vocode".
            timeline: records when each phase runs (None: a new one).
            lexicon: respells words (``ane.text.read_lexicon``).
            ssml: whether ``text`` is SSML; None: if it begins with "<speak". Other text may have [pause:1.5s].

        Raises:
            UserError: nothing to say, markup that asks for what cannot be done, a word or a text that must not be split
                is too long for one pass, a speed out of range, out of memory.
        """
        [speech] = self.speak_all([text], speed, settings, progress, timeline, lexicon, ssml)
        return speech

    def speak_all(self, texts: Sequence[str], speed: float | None = None, settings: FastSpeechSettings | None = None,
                  progress: PhaseProgress = report_nothing, timeline: Timeline | None = None,
                  lexicon: Lexicon | None = None, ssml: bool | None = None) -> Iterator[FastSpeechResult]:
        """Speak several texts, as ``speak`` does; chunks of all of them share passes.

        Work begins when the first result is requested. Results are yielded in order, each as soon as it is ready.
        """
        settings, timeline = with_speed(settings, speed), timeline or Timeline()
        timeline.mark_text_ready()
        began = timeline.text_ready
        chunks = [split_into_symbols(read_passages(text, lexicon, ssml), settings.split, self.most_symbols)
                  for text in texts]
        encoded = self.encode(chunks, settings, timeline, progress)
        mels = self.mels([part for parts in encoded for part in parts], settings, timeline, progress)
        sounds = self.sounds(mels, sum(map(len, encoded)), settings.seed, timeline, progress)
        for text, parts in zip(texts, encoded, strict=True):
            spoken = list(islice(sounds, len(parts)))
            sounds_of_text = [delivered_whole(sound, part.chunk.spoken_delivery, SAMPLE_RATE)
                              for (_, sound), part in zip(spoken, parts, strict=True)]
            audio = join_with_pauses(sounds_of_text, settings.pause)
            timeline.mark_first_audio()
            yield FastSpeechResult(audio, settings.speed, [part.chunk.text for part in parts],
                                   [mel for mel, _ in spoken], [part.repeats for part in parts],
                                   timeline.new_seconds_by_phase(), timeline.now() - began, self.notes(text, parts),
                                   timeline, seed=settings.seed if "waveglow" in self.model.networks else None,
                                   words=words_of([(part.chunk, part.repeats) for part in parts], sounds_of_text,
                                                  settings.pause))
            began = timeline.now()
        self.backend.release()

    def stream(self, text: str, speed: float | None = None, settings: FastSpeechSettings | None = None,
               progress: PhaseProgress = report_nothing, timeline: Timeline | None = None,
               lexicon: Lexicon | None = None, ssml: bool | None = None) -> FastSpeechStream:
        """Speak ``text`` and return its sound chunk by chunk, each as soon as it is ready; the first in two pieces.

        Arguments and errors are those of ``speak``. The pieces join to what ``speak`` returns with ``batch=1``.
        """
        settings, timeline = replace(with_speed(settings, speed), batch=1), timeline or Timeline()
        timeline.mark_text_ready()
        chunks = split_into_symbols(read_passages(text, lexicon, ssml), settings.split, self.most_symbols)
        return FastSpeechStream(self.pieces(chunks, settings, timeline, progress), [chunk.text for chunk in chunks],
                                settings.speed, timeline)

    def feed(self, texts: Iterable[str], speed: float | None = None, settings: FastSpeechSettings | None = None,
             progress: PhaseProgress = report_nothing, timeline: Timeline | None = None,
             lexicon: Lexicon | None = None) -> FedStream:
        """Speak a text that arrives in pieces, divided anywhere, while it arrives.

        Other arguments and errors: ``speak``.
        """
        settings, timeline = with_speed(settings, speed), timeline or Timeline()
        return FedStream(texts, lambda text: self.stream(text, None, settings, progress, timeline, lexicon, False),
                         normalise_upstream, lexicon, SAMPLE_RATE, timeline)

    def pieces(self, chunks: Sequence[SymbolChunk], settings: FastSpeechSettings, timeline: Timeline,
               progress: PhaseProgress) -> Iterator[StreamedSound]:
        """Pieces of sound, each with the pause before it."""
        before: list[np.ndarray] = []       # a piece, or none, that a pause follows
        samples = 0
        try:
            for index, chunk in enumerate(chunks):
                [parts] = self.encode([[chunk]], settings, timeline, report_nothing)
                notes = self.notes(chunk.text, parts)
                for mel, part in zip(self.mels(parts, settings, timeline, report_nothing), parts, strict=True):
                    made = self.whole_sound if before else self.first_sounds
                    frames, words = mel.shape[1], chunk_words(part.chunk, part.repeats)
                    for sound in delivered(made(mel, settings.seed, timeline), part.chunk.spoken_delivery, SAMPLE_RATE):
                        piece = join_with_pauses([*before, sound], settings.pause)
                        begins = (samples + len(piece) - len(sound)) / SAMPLE_RATE
                        yield StreamedSound(piece, frames, notes, delivered_words(
                            words, part.chunk.spoken_delivery, 0.0, inf, begins))
                        samples += len(piece)
                        before, frames, words = [], 0, []
                    before = [np.zeros(0, np.float32)]
                progress("vocode", index + 1, len(chunks), "")
        finally:
            self.backend.release()

    def whole_sound(self, mel: np.ndarray, seed: int, timeline: Timeline) -> Iterator[np.ndarray]:
        """The sound of a mel, in one piece."""
        with timeline.record("vocode"):
            sound = self.vocode(mel, seed)
        yield sound

    def first_sounds(self, mel: np.ndarray, seed: int, timeline: Timeline) -> Iterator[np.ndarray]:
        """The sound of a mel in pieces, the first of them short, so that it comes soon."""
        if not mel.shape[1] or "vocoder" not in self.model.networks or "waveglow" in self.model.networks:
            yield from self.whole_sound(mel, seed, timeline)
            return
        pieces = vocoded_in_calls(mel, self.model.config("vocoder").margin, self.mel_sound, FIRST_LENGTHS)
        while True:
            with timeline.record("vocode"):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def prepare(self, settings: FastSpeechSettings | None = None) -> None:
        """Load the networks, so that the first text is spoken sooner."""
        self.backend.load(*sorted(self.model.networks))
        text_to_ids("1")            # the library that spells numbers takes a second to load

    def encode(self, texts: Sequence[Sequence[SymbolChunk]], settings: FastSpeechSettings, timeline: Timeline,
               progress: PhaseProgress) -> list[list[EncodedChunk]]:
        """Run the text side on the chunks of all texts. A chunk that takes too many frames is split and encoded again.

        Raises:
            UserError: a single word takes more frames than one pass can have.
        """
        waiting = [(index, chunk) for index, chunks in enumerate(texts) for chunk in chunks]
        done: list[list[EncodedChunk]] = [[] for _ in texts]
        while waiting:
            batch, waiting = waiting[:settings.batch], waiting[settings.batch:]
            with timeline.record("text"):
                found = self.encode_batch([chunk for _, chunk in batch], settings)
            for place, ((index, _), part) in enumerate(zip(batch, found, strict=True)):
                if part.frames > self.most_frames:        # those after it are encoded again, so order is kept
                    shorter = self.shorter(part, settings)
                    waiting = [*((index, piece) for piece in shorter), *batch[place + 1:], *waiting]
                    break
                done[index].append(part)
            finished = sum(map(len, done))
            progress("text", finished, finished + len(waiting), "")
        return done

    def shorter(self, part: EncodedChunk, settings: FastSpeechSettings) -> list[SymbolChunk]:
        """The parts of a chunk that takes too many frames. Raises UserError when it cannot be split or must not be."""
        pieces = [part.chunk] if settings.split is None else halve(part.chunk, self.most_symbols)
        if len(pieces) < 2:
            advice = "allow it to be split, or raise speed" if settings.split is None else "raise speed, or shorten it"
            raise UserError(f"{shorten(part.chunk.text)!r} takes {part.frames} mel frames at speed {settings.speed:g}, "
                            f"and one pass takes at most {self.most_frames}: {advice}")
        return pieces

    def encode_batch(self, chunks: Sequence[SymbolChunk], settings: FastSpeechSettings) -> list[EncodedChunk]:
        """Run the text side once, on chunks padded to the longest of them."""
        lengths = np.array([len(chunk.ids) for chunk in chunks])
        ids = np.zeros((len(chunks), lengths.max()), np.int64)
        for row, chunk in zip(ids, chunks, strict=True):
            row[:len(chunk.ids)] = chunk.ids
        encoded = self.backend.run("text", ids=ids, mask=length_mask(lengths, ids.shape[1]))
        if not np.isfinite(encoded[..., -1]).all():
            raise UserError("the model predicts durations that are NaN or infinite: its weights or the precision is "
                            "the cause; use precision=fp32, or import the checkpoint again")
        speeds = np.array([[chunk.delivery.speed] for chunk in chunks], np.float32)
        frames = repeats(durations(encoded[..., -1]) / speeds, 1 / settings.speed, settings.rounding)
        return [EncodedChunk(chunk, encoded[row, :length, :-1], frames[row, :length])
                for row, (chunk, length) in enumerate(zip(chunks, lengths, strict=True))]

    def mels(self, parts: Sequence[EncodedChunk], settings: FastSpeechSettings, timeline: Timeline,
             progress: PhaseProgress) -> Iterator[np.ndarray]:
        """The mel of each chunk, (M, L) float32, in order; the mel side runs on several chunks at a time."""
        bands = self.model.config("fastspeech").n_mels
        for start in range(0, len(parts), settings.batch):
            batch = parts[start:start + settings.batch]
            with timeline.record("mel"):
                silent = all(part.frames == 0 for part in batch)
                mels = np.zeros((len(batch), bands, 0), np.float32) if silent else self.decode_batch(batch)
            progress("mel", start + len(batch), len(parts), "")
            for part, mel in zip(batch, mels, strict=True):
                yield mel[:, :part.frames]

    def decode_batch(self, parts: Sequence[EncodedChunk]) -> np.ndarray:
        """Run the mel side once: (B, M, L), L the most frames of a chunk."""
        symbols, frames = max(len(part.repeats) for part in parts), np.array([part.frames for part in parts])
        states = np.zeros((len(parts), symbols, parts[0].states.shape[1]), np.float32)
        counts = np.zeros((len(parts), symbols), np.int64)
        for row, part in enumerate(parts):
            states[row, :len(part.repeats)], counts[row, :len(part.repeats)] = part.states, part.repeats
        return self.backend.run("mel", states=states, alignment=alignment_matrix(counts, frames.max()),
                                mask=length_mask(frames, frames.max()))

    def sounds(self, mels: Iterator[np.ndarray], total: int, seed: int, timeline: Timeline,
               progress: PhaseProgress) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each mel with its sound."""
        for done, mel in enumerate(mels, 1):
            with timeline.record("vocode"):
                sound = self.vocode(mel, seed)
            progress("vocode", done, total, "")
            yield mel, sound

    def vocode(self, mel: np.ndarray, seed: int) -> np.ndarray:
        """Mel (M, L) → sound (256·L,) float32 within ±1. ``seed`` is that of WaveGlow's noise."""
        if not mel.shape[1]:
            return np.zeros(0, np.float32)
        if "waveglow" in self.model.networks:
            noise = waveglow_noise(mel.shape[1], seed)
            sound = self.backend.run("waveglow", mel=np.ascontiguousarray(mel[None]), noise=noise)
            return np.clip(sound[0, 0], -1, 1)
        if "vocoder" not in self.model.networks:
            return griffin_lim(mel, SAMPLE_RATE, HIGHEST)
        if self.backend.longest("vocoder", "frames") is not None:       # packages have windows of their own
            return self.mel_sound(mel)
        return vocoded(mel, self.model.config("vocoder").margin, self.mel_sound)

    def mel_sound(self, mel: np.ndarray) -> np.ndarray:
        """Mel (M, L) → sound (256·L,), by one call of HiFi-GAN."""
        return self.backend.run("vocoder", mel=np.ascontiguousarray(mel[None]))[0, 0][:mel.shape[1] * HOP]

    def notes(self, text: str, parts: Sequence[EncodedChunk]) -> list[str]:
        """Warnings for the user."""
        notes = [] if VOCODERS & self.model.networks else [NO_VOCODER]
        unknown = unknown_phonemes(text)
        if unknown:
            notes.append(f"not spoken, because they are no ARPAbet phonemes: {', '.join(dict.fromkeys(unknown))}")
        silent = [part.chunk.text for part in parts if not part.frames]
        if silent:
            notes.append(f"{shorten(silent[0])!r} is silent: every duration that the model predicts for it rounds to 0")
        return notes


def with_speed(settings: FastSpeechSettings | None, speed: float | None) -> FastSpeechSettings:
    """The settings (None: the defaults) with this speed (None: theirs)."""
    settings = settings or FastSpeechSettings()
    return settings if speed is None else replace(settings, speed=speed)


def waveglow_noise(frames: int, seed: int) -> np.ndarray:
    """The noise of a sound, (1, 256, L) float32: frame after frame, so longer noise begins with shorter noise."""
    noise = np.random.default_rng(seed).standard_normal((frames, HOP), dtype=np.float32)
    return np.ascontiguousarray(SIGMA * noise.T[None])


def join_with_pauses(pieces: Sequence[np.ndarray], seconds: float) -> np.ndarray:
    """The pieces of sound in one, with silence between them."""
    pause = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    joined = [part for piece in pieces for part in (pause, piece)][1:]
    return np.concatenate(joined) if joined else np.zeros(0, np.float32)
