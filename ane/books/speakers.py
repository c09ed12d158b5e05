"""One interface to the synthesizers of all models: a text and a seed in, sound out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ane.books.plan import digest_of
from ane.models.spoken_words import SpokenWord

if TYPE_CHECKING:
    from ane.models.fastspeech.settings import FastSpeechSettings
    from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
    from ane.models.kitten.settings import KittenSettings
    from ane.models.kitten.synthesizer import KittenSynthesizer
    from ane.models.tortoise.settings import Settings
    from ane.models.tortoise.synthesizer import Synthesizer
    from ane.voices import Voice

WITHOUT_EFFECT = ("lanes", "batch")         # settings that change the speed of the work, and not what is spoken


@dataclass(frozen=True)
class SpokenChunk:
    """The sound (S,) float32 of a chunk, warnings about it, and its words in the time of the sound, if timed."""

    audio: np.ndarray
    notes: list[str] = field(default_factory=list)
    words: Sequence[SpokenWord] = ()


class BookSpeaker(Protocol):
    """Speaks one chunk a request. Equal text and seed give equal sound, whatever was spoken before.

    Attributes:
        model, voice: digests; settings: JSON. See ``SpeechIdentity``.
        lengths: desired and maximum characters of a chunk; None: whole paragraphs.
    """

    sample_rate: int
    model: str
    voice: str
    settings: Mapping[str, Any]
    lengths: tuple[int, int] | None

    def speak(self, text: str, seed: int) -> SpokenChunk:
        """Speak a chunk. Raises UserError when it cannot be spoken."""


class TortoiseSpeaker:
    """Tortoise. Chunks do not share the decoder's lanes: a sound is equal alone and in company up to rounding only."""

    sample_rate = 24000

    def __init__(self, synthesizer: "Synthesizer", voice: "Voice", settings: "Settings", word_times: bool = False):
        self.synthesizer, self._voice, self.word_times = synthesizer, voice, word_times
        self.model, self.lengths = synthesizer.model.identity, settings.split
        self.voice = digest_of([latent.tobytes().hex() for latent in (voice.ar, voice.diffusion, *voice.clip_mels)])
        self.settings = settings_of(settings)
        self._settings = replace(settings, split=settings.split and (settings.split[1], settings.split[1]))

    def speak(self, text: str, seed: int) -> SpokenChunk:
        speech = self.synthesizer.speak(text, voice=self._voice, settings=self._settings, seed=seed,
                                        word_times=self.word_times)
        return SpokenChunk(speech.audio, speech.notes, speech.words)


class FastSpeechSpeaker:
    """FastSpeech, which has no voices and draws no random numbers."""

    sample_rate = 22050

    def __init__(self, synthesizer: "FastSpeechSynthesizer", settings: "FastSpeechSettings"):
        self.synthesizer, self.model, self.voice = synthesizer, synthesizer.model.identity, ""
        self.settings, self.lengths = settings_of(settings), settings.split
        self._settings = replace(settings, split=settings.split and (settings.split[1], settings.split[1]))

    def speak(self, text: str, seed: int) -> SpokenChunk:
        speech = self.synthesizer.speak(text, settings=self._settings)
        return SpokenChunk(speech.audio, speech.notes, speech.words)


class KittenSpeaker:
    """KittenTTS, which draws no random numbers that a seed could change."""

    sample_rate = 24000
    lengths = (200, 300)

    def __init__(self, synthesizer: "KittenSynthesizer", voice: str | None, settings: "KittenSettings"):
        self.synthesizer, self.voice = synthesizer, synthesizer.voices.resolve(voice)
        self.model, self.settings, self._settings = synthesizer.model.identity, settings_of(settings), settings

    def speak(self, text: str, seed: int) -> SpokenChunk:
        speech = self.synthesizer.speak(text, self.voice, settings=self._settings)
        return SpokenChunk(speech.audio, speech.notes, speech.words)


def settings_of(settings: Any) -> dict[str, Any]:
    """The settings that change the sound. The lengths of chunks do so through their texts alone."""
    return {name: value for name, value in asdict(settings).items() if name not in (*WITHOUT_EFFECT, "split", "best")}
