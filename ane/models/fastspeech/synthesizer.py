"""Speak with FastSpeech at 22.05 kHz: run the text stage, the length regulator, the mel stage and the vocoder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ane.audio.mel import griffin_lim
from ane.backends.base import Backend
from ane.backends.rows import longest_pass
from ane.backends.windows import FIRST_LENGTHS, Windowed
from ane.bundles import Bundle
from ane.models.durations import alignment_matrix, durations, length_mask, repeats
from ane.models.fastspeech.settings import HIGHEST, HOP, SAMPLE_RATE, FastSpeechSettings
from ane.models.fastspeech.text import SymbolChunk, halve, split_into_symbols, symbol_words, unknown_phonemes
from ane.speech.chunks import RenderedChunk
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.speaker import Speaker
from ane.speech.words import timed_words
from ane.system.errors import UserError
from ane.text import normalise_upstream, shorten

NO_VOCODER = (
    "this model has no vocoder, so Griffin-Lim made the sound, which is rough: import the model again with "
    "--vocoder and a HiFi-GAN checkpoint"
)


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk with its states, (T, C) float32, and each symbol's number of frames, (T,) int64."""

    chunk: SymbolChunk
    states: np.ndarray
    repeats: np.ndarray

    @property
    def frames(self) -> int:
        return int(self.repeats.sum())


class FastSpeechSynthesizer(Speaker):
    """A FastSpeech model that is loaded on a backend. It speaks English text, and ARPAbet phonemes in braces.

    It makes the same sound every time it speaks a text.
    """

    settings, sample_rate, speeds = FastSpeechSettings, SAMPLE_RATE, (0.25, 4.0)

    def __init__(self, model: Bundle, backend: Backend):
        super().__init__(model, backend)
        positions: int = model.config("fastspeech").max_seq_len
        self.most_symbols, self.most_frames = (longest_pass(backend, stage, positions) for stage in ("text", "mel"))

    def facts(self, request: SpeechRequest, voice: Any) -> dict[str, Any]:
        return {"speed": request.speed, "frames": 0}

    def normaliser(self, settings: FastSpeechSettings) -> Callable[[str], str]:
        return normalise_upstream

    def chunks(self, request: SpeechRequest, context: SpeechContext) -> list[SymbolChunk]:
        return split_into_symbols(
            context.passages(request, arpabet=True), request.settings.split, self.most_symbols, request.settings.pause
        )

    def render(
        self, chunks: Sequence[SymbolChunk], request: SpeechRequest, context: SpeechContext
    ) -> Iterator[RenderedChunk]:
        """Yield the chunks in order. If nobody streams, each network computes several chunks in one pass.

        The first array of a stream is short, so that it comes soon.
        """
        settings = request.settings if context.batched else replace(request.settings, batch=1)
        done, first = 0, () if context.batched else FIRST_LENGTHS
        try:
            for group in [chunks] if context.batched else [[chunk] for chunk in chunks]:
                parts = self.encode(group, settings, request.speed, context)
                for part, mel in zip(parts, self.mels(parts, settings, context), strict=True):
                    done, total = done + 1, len(parts) if context.batched else max(done + 1, len(chunks))
                    rendered = self.rendered(part, mel, context, first)
                    rendered.sound = context.reporting(rendered.sound, "vocode", done, total)
                    yield rendered
                    first = ()
        finally:
            self.backend.release()

    def rendered(
        self, part: EncodedChunk, mel: np.ndarray, context: SpeechContext, first: Sequence[int]
    ) -> RenderedChunk:
        """Prepare the sound of a chunk from its mel, and report facts about the chunk.

        For ``first``, see ``vocoded``.
        """
        times = np.concatenate(([0], part.repeats.cumsum())) * HOP / SAMPLE_RATE
        rendered = RenderedChunk(part.chunk, context.timeline.record_each("vocode", self.vocoded(mel, first)))
        rendered.report(
            timed_words(part.chunk.text, symbol_words(part.chunk.ids), times),
            {"frames": part.frames},
            self.notes(part),
            mels=mel,
            durations=part.repeats,
        )
        return rendered

    def vocoded(self, mel: np.ndarray, first: Sequence[int] = ()) -> Iterator[np.ndarray]:
        """Convert a mel (M, L) to sound, (256·L,) float32 within ±1, and yield it in several arrays.

        ``first`` lists the numbers of frames that the first call of HiFi-GAN may have.
        """
        if not mel.shape[1]:
            return
        if "vocoder" not in self.model.networks:
            yield griffin_lim(mel, SAMPLE_RATE, HIGHEST)
        else:
            margin = self.model.config("vocoder").margin
            yield from Windowed(self.backend, "vocoder", margin, self.mel_sound).whole(mel, first)

    def encode(
        self, chunks: Sequence[SymbolChunk], settings: FastSpeechSettings, speed: float, context: SpeechContext
    ) -> list[EncodedChunk]:
        """Run the first half of the network on chunks.

        If a chunk has too many frames, the method splits the chunk and encodes the parts again.

        Raises:
            UserError: A single word takes more frames than one pass can have.
        """
        waiting, done = list(chunks), list[EncodedChunk]()
        while waiting:
            batch, waiting = waiting[: settings.batch], waiting[settings.batch :]
            with context.timeline.record("text"):
                encoded = self.encode_batch(batch, settings, speed)
            for place, part in enumerate(encoded):
                if part.frames > self.most_frames:  # encode all later chunks again, to keep the order
                    waiting = [*self.shorter(part, settings, speed), *batch[place + 1 :], *waiting]
                    break
                done.append(part)
            context.progress("text", len(done), len(done) + len(waiting), "")
        return done

    def shorter(self, part: EncodedChunk, settings: FastSpeechSettings, speed: float) -> list[SymbolChunk]:
        """Split a chunk with too many frames.

        Raises UserError if the chunk is one word, or if the settings forbid splitting.
        """
        pieces = [part.chunk] if settings.split is None else halve(part.chunk, self.most_symbols, settings.pause)
        if len(pieces) < 2:
            advice = "allow it to be split, or raise speed" if settings.split is None else "raise speed, or shorten it"
            raise UserError(
                f"{shorten(part.chunk.text)!r} takes {part.frames} mel frames at speed {speed:g}, "
                f"and one pass takes at most {self.most_frames}: {advice}"
            )
        return pieces

    def encode_batch(
        self, chunks: Sequence[SymbolChunk], settings: FastSpeechSettings, speed: float
    ) -> list[EncodedChunk]:
        """Run the first half of the network once on all these chunks, padded to the length of the longest chunk."""
        lengths = np.array([len(chunk.ids) for chunk in chunks])
        ids = np.zeros((len(chunks), lengths.max()), np.int64)
        for row, chunk in zip(ids, chunks, strict=True):
            row[: len(chunk.ids)] = chunk.ids
        encoded = self.backend.run("text", ids=ids, mask=length_mask(lengths, ids.shape[1]))
        speeds = np.array([[chunk.speed] for chunk in chunks], np.float32)
        frames = repeats(durations(encoded[..., -1]) / speeds, 1 / speed, settings.rounding)
        return [
            EncodedChunk(chunk, encoded[row, :length, :-1], frames[row, :length])
            for row, (chunk, length) in enumerate(zip(chunks, lengths, strict=True))
        ]

    def mels(
        self, parts: Sequence[EncodedChunk], settings: FastSpeechSettings, context: SpeechContext
    ) -> Iterator[np.ndarray]:
        """Compute the mel of each chunk, (M, L) float32, and yield the mels in order.

        One pass computes several chunks.
        """
        bands = self.model.config("fastspeech").n_mels
        for start in range(0, len(parts), settings.batch):
            batch = parts[start : start + settings.batch]
            with context.timeline.record("mel"):
                silent = all(part.frames == 0 for part in batch)
                mels = np.zeros((len(batch), bands, 0), np.float32) if silent else self.decode_batch(batch)
            context.progress("mel", start + len(batch), len(parts), "")
            for part, mel in zip(batch, mels, strict=True):
                yield mel[:, : part.frames]

    def decode_batch(self, parts: Sequence[EncodedChunk]) -> np.ndarray:
        """Run the second half of the network, which computes mels, once.

        Returns mels (B, M, L). The longest chunk has L frames.
        """
        symbols, frames = max(len(part.repeats) for part in parts), np.array([part.frames for part in parts])
        states = np.zeros((len(parts), symbols, parts[0].states.shape[1]), np.float32)
        counts = np.zeros((len(parts), symbols), np.int64)
        for row, part in enumerate(parts):
            states[row, : len(part.repeats)], counts[row, : len(part.repeats)] = part.states, part.repeats
        return self.backend.run(
            "mel",
            states=states,
            alignment=alignment_matrix(counts, frames.max()),
            mask=length_mask(frames, frames.max()),
        )

    def mel_sound(self, mel: np.ndarray) -> np.ndarray:
        """Convert a mel (M, L) to sound (256·L,) with one call of HiFi-GAN."""
        return self.backend.run("vocoder", mel=np.ascontiguousarray(mel[None]))[0, 0][: mel.shape[1] * HOP]

    def notes(self, part: EncodedChunk) -> list[str]:
        """List warnings about a chunk for the user."""
        notes = [] if "vocoder" in self.model.networks else [NO_VOCODER]
        if unknown := unknown_phonemes(part.chunk.text):
            notes.append(f"these are not ARPAbet phonemes and are not spoken: {', '.join(dict.fromkeys(unknown))}")
        if not part.frames:
            notes.append(
                f"{shorten(part.chunk.text)!r} is silent, because every duration that the model predicts rounds to 0"
            )
        return notes


SPEAKER = FastSpeechSynthesizer
