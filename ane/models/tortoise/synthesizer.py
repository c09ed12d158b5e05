"""Speak with a Tortoise model: 24 kHz speech from text and a voice."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ane.audio.reader import MAX_RATE, MIN_RATE, check_clip
from ane.audio.time_stretch import SPEEDS, check_speed
from ane.backends.base import Backend
from ane.bundles import Bundle
from ane.models.tortoise.chunks import TokenChunk, split_into_chunks
from ane.models.tortoise.decoding import make_lanes
from ane.models.tortoise.pipeline import Rendering
from ane.models.tortoise.sampling import Randomness
from ane.models.tortoise.settings import PRESETS, SAMPLE_RATE, TortoiseSettings
from ane.models.tortoise.vocoding import vocoder_of
from ane.models.tortoise.voices import VOICE_NETWORKS, checked_clips, encode_clips, resolve_voice
from ane.models.tortoise.word_times import WordTimer
from ane.speech.chunks import RenderedChunk
from ane.speech.lanes import Lanes
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.speaker import Speaker
from ane.speech.turns import Turns
from ane.system import paths
from ane.system.errors import UserError, check_type
from ane.text import NORMALISERS
from ane.voices import Voice
from ane.voices.finding import RANDOM, find_voice
from ane.voices.voice import parse_mix


class TortoiseSpeaker(Speaker):
    """A Tortoise model that is loaded on a backend.

    A request's ``speed``, from 0.5 to 2, stretches the finished sound without changing its pitch.
    """

    settings, sample_rate, speeds, stretches = TortoiseSettings, SAMPLE_RATE, SPEEDS, True

    def __init__(self, model: Bundle, backend: Backend):
        super().__init__(model, backend)
        self._timers: dict[str, WordTimer] = {}  # by normaliser; kept, because a timer holds the decoder's tables

    def shared_lanes(self, lanes: int, turns: Turns | None = None) -> Lanes:
        config = self.model.config("autoregressive")
        codes = max(TortoiseSettings.of(preset, self.model.settings).sampling.max_codes for preset in PRESETS)
        return make_lanes(self.backend, config, lanes, min(codes, config.max_mel_tokens - 1), lanes, turns=turns)

    def networks(self, settings: TortoiseSettings) -> list[str]:
        vocoder = vocoder_of(self.model.networks, settings.diffusion is not None)
        needed = ["autoregressive", *(["diffusion"] if settings.diffusion else []), vocoder]
        return [*needed, "clvp"] if settings.ranked else needed

    def with_defaults(self, request: SpeechRequest) -> SpeechRequest:
        request = super().with_defaults(request)
        return request.changed(seed=secrets.randbits(32) if request.seed is None else request.seed)

    def facts(self, request: SpeechRequest, voice: Voice) -> dict[str, Any]:
        return {"seed": request.seed, "voice": voice.name, "codes": 0}

    def normaliser(self, settings: TortoiseSettings) -> Callable[[str], str]:
        return NORMALISERS[settings.normaliser]

    def chunks(self, request: SpeechRequest, context: SpeechContext) -> list[TokenChunk]:
        chunks = split_into_chunks(context.passages(request), self.model, request.settings)
        for chunk in chunks:
            chunk.speed *= request.speed
            check_speed(chunk.speed)
        return chunks

    @property
    def voice_folders(self) -> list[Path]:
        """The folders that have the model's voices and the user's voices."""
        return [folder for folder in (self.model.voices, paths.voices_dir()) if folder is not None]

    def check_voice(self, request: SpeechRequest, context: SpeechContext) -> None:
        if isinstance(request.voice, str):
            for name in parse_mix(request.voice)[0]:
                if name != RANDOM:
                    find_voice(name, self.voice_folders)

    def voice_of(self, request: SpeechRequest, context: SpeechContext) -> Voice:
        with context.timeline.record("voice"):
            voice = self.voice(request.voice, Randomness(request.seed or 0), request.settings.clip_mode)
        if request.settings.diffusion is not None and not voice.has_diffusion:
            raise UserError(
                f"voice {voice.name} has a latent for the decoder but none for the diffusion: use preset=fastest, "
                "or make the voice from its clips",
                "preset",
            )
        return voice

    def voice(self, voice: str | Voice | None, randomness: Randomness, mode: str = "first") -> Voice:
        """Load or make the voice that a name, a path or a mix describes. If ``voice`` is a ``Voice``, only check it.

        Raises:
            UserError: The voice does not exist, does not suit this model, or belongs to another model.
        """
        if isinstance(voice, Voice):
            voice.check_widths(self.model.widths)
            return voice
        return resolve_voice(
            self.model.default_voice if voice is None else voice,
            folders=self.voice_folders,
            backend=self.backend,
            mel_norms=self.model.mel_norms,
            model_id=self.model.identity,
            widths=self.model.widths,
            rng=randomness.voice(),
            decoder=self.model.decoder_md5,
            mode=mode,
        )

    def voice_of_clips(self, clips: Sequence[np.ndarray] | np.ndarray, sample_rate: int, name: str = "clips") -> Voice:
        check_type("sample_rate", sample_rate, (int, float, np.number), "a number of samples per second")
        check_type("name", name, str, "a text")
        if not MIN_RATE <= sample_rate <= MAX_RATE:
            raise UserError(f"sample_rate must be from {MIN_RATE} to {MAX_RATE} Hz, got {sample_rate}", "sample_rate")
        read = [(clip, sample_rate) for clip in checked_clips(clips)]
        for number, (clip, rate) in enumerate(read, 1):
            check_clip(clip, rate, f"clip {number}")
        voice = encode_clips(read, self.backend, self.model.mel_norms, np.random.default_rng(0), name=name)
        self.backend.release(*VOICE_NETWORKS)
        return replace(voice, decoder=self.model.decoder_md5)

    def render(
        self, chunks: Sequence[TokenChunk], request: SpeechRequest, context: SpeechContext
    ) -> Iterator[RenderedChunk]:
        timer = self.word_timer(request.settings.normaliser) if request.word_times else None
        try:
            yield from Rendering(self.model, self.backend, chunks, request, context, timer).rendered()
        finally:
            self.backend.release()

    def word_timer(self, normaliser: str) -> WordTimer:
        """Return the object that times the words of texts which ``normaliser`` has spelt out.

        Only the first call creates it.
        """
        if normaliser not in self._timers:
            self._timers[normaliser] = WordTimer(self.backend, self.model, normaliser)
        return self._timers[normaliser]


SPEAKER = TortoiseSpeaker
