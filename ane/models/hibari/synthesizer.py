"""Speak English with hibari at 24 kHz: predict durations, then pitch and energy, then spectra, and make the sound."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ane.backends.rows import STEP, longest_pass, run_rows
from ane.models.durations import durations, length_mask, repeats
from ane.models.hibari.config import HibariConfig, margins
from ane.models.hibari.settings import HibariSettings
from ane.models.phoneme_chunks import PhonemeChunk, split_into_phonemes
from ane.models.vocoders.harmonic_noise import HOP, SAMPLE_RATE, HarmonicNoise
from ane.speech.ahead import rendered_in_order
from ane.speech.chunks import RenderedChunk
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.speaker import Speaker
from ane.speech.words import timed_words
from ane.text.english import normalise_cased

MOST_IDS = 402  # largest number of phonemes in one pass, as in the published program
SLOW_FRAME = 2  # frames per slow frame; durations are counted in slow frames
MOST_SILENCE = 4  # largest silence before a chunk, in slow frames; the model alone would wait for a third of a second
LOG_PITCH_SCALE = 5.0
GAIN = 1.7  # factor for samples, because the voice is quiet: in forty sentences, the highest peak was 0.57
WHOLE_FRAMES = 256  # a chunk of at most this many frames gets one call, so its first sound comes 6 ms later
FIRST_FRAMES = 24  # number of frames in the first call of a longer chunk, without margins


class HibariSynthesizer(Speaker):
    """A hibari model that is loaded on a backend. It speaks English. The same text and seed give the same sound."""

    settings, sample_rate, speeds = HibariSettings, SAMPLE_RATE, (0.25, 4.0)

    @property
    def config(self) -> HibariConfig:
        return self.model.config("hibari")

    def facts(self, request: SpeechRequest, voice: Any) -> dict[str, Any]:
        return {"seed": request.seed or 0, "speed": request.speed, "frames": 0}

    def normaliser(self, settings: HibariSettings) -> Callable[[str], str]:
        return normalise_cased

    def chunks(self, request: SpeechRequest, context: SpeechContext) -> list[PhonemeChunk]:
        return split_into_phonemes(
            context.passages(request),
            request.settings.split,
            longest_pass(self.backend, "text", MOST_IDS),
            lambda text: request.settings.pause,
            request.settings.british,
        )

    def render(
        self, chunks: Sequence[PhonemeChunk], request: SpeechRequest, context: SpeechContext
    ) -> Iterator[RenderedChunk]:
        try:
            yield from rendered_in_order(
                chunks,
                lambda rendered, chunk_context: self.sound(rendered, request, chunk_context),
                context,
                self.backend.calls_at_once,
            )
        finally:
            self.backend.release()

    def sound(self, rendered: RenderedChunk, request: SpeechRequest, context: SpeechContext) -> Iterator[np.ndarray]:
        """Yield the sound of a chunk. Once the first array has come, ``rendered`` also has the chunk's facts.

        The model cannot make a phoneme shorter than 25 ms. So faster speech is made at the trained speed, and then some
        of its frames are left out. The first array of a chunk is short, so that a stream begins soon. The network gets
        the same calls even if nobody streams: some engines quantise the activations of each call, and return the same
        sound only for the same calls.
        """
        chunk: Any = rendered.chunk
        speed = request.speed * chunk.speed
        skip = max(speed, 1.0)  # how many frames are made for each frame that is spoken
        with context.timeline.record("text"):
            states, counts = self.text(chunk, min(speed, 1.0))
            counts[0] = min(counts[0], int(MOST_SILENCE * skip))
        with context.timeline.record("prosody"):
            f0, frames = self.prosody(states, counts)
        spoken = (np.arange(int(len(f0) / skip) or 1) * skip).astype(int)
        times = np.concatenate(([0], counts.cumsum())) * SLOW_FRAME * HOP / SAMPLE_RATE / skip
        rendered.report(
            timed_words(chunk.text, chunk.spans, times), {"frames": len(spoken)}, durations=counts, pitch=f0[spoken]
        )
        vocoder = HarmonicNoise(f0[spoken], request.seed or 0)
        sounds = (
            vocoder.feed(piece)
            for spectra in self.spectra(frames, spoken)
            for piece in ([spectra] if context.batched or vocoder.done else np.split(spectra, [FIRST_FRAMES]))
            if len(piece)
        )
        for samples in context.timeline.record_each("vocode", sounds):
            samples *= np.float32(GAIN)
            yield np.clip(samples, -1, 1, out=samples)

    def prosody(self, states: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predict f0 and energy, and build the inputs of the spectra stage.

        Args:
            states: States of the phonemes, (T, P + C).
            counts: Duration of each phoneme in slow frames, (T,).

        Returns:
            f0 in Hz, (L,), and the frames (L, C + 2). A frame consists of a state for the sound, log f0 and energy.
        """
        for_prosody, for_sound = np.split(states, [self.config.prosody_width], axis=1)
        slow = for_prosody.repeat(counts, axis=0)  # (S, P)
        margin = margins(self.config)["prosody"]
        prosody = np.concatenate(list(run_rows(self.backend, "prosody", margin, slow, SLOW_FRAME, name="states")))
        f0 = np.ascontiguousarray(prosody[:, 0])
        pitch = np.log(1 + np.maximum(f0, 0)) / np.float32(LOG_PITCH_SCALE)
        return f0, np.column_stack((for_sound.repeat(SLOW_FRAME * counts, axis=0), pitch, prosody[:, 1]))

    def spectra(self, frames: np.ndarray, spoken: np.ndarray) -> Iterator[np.ndarray]:
        """Compute the spectra of frames (L, C + 2) in windows. Yields the spectra at the indices in ``spoken``."""
        done, first = 0, WHOLE_FRAMES if len(frames) <= WHOLE_FRAMES else FIRST_FRAMES
        for window in run_rows(self.backend, "spectra", margins(self.config)["spectra"], frames, first=first):
            inside = spoken[(spoken >= done) & (spoken < done + len(window))] - done
            done += len(window)
            if len(inside):
                yield window if len(inside) == len(window) else window[inside]

    def text(self, chunk: PhonemeChunk, speed: float) -> tuple[np.ndarray, np.ndarray]:
        """Encode the phonemes of a chunk.

        Returns their states, (T, P + C), and their durations in slow frames, (T,) int64, each at least 1.
        """
        length = len(chunk.ids)
        ids = np.zeros((1, -(-length // STEP) * STEP), np.int64)
        ids[0, :length] = chunk.ids
        encoded = self.backend.run("text", ids=ids, mask=length_mask(np.array([length]), ids.shape[1]))[0, :length]
        return encoded[:, :-1], np.maximum(repeats(durations(encoded[:, -1]), 1 / speed), 1)


SPEAKER = HibariSynthesizer
