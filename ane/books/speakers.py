"""One interface to the synthesizers of all models: a text and a seed in, sound out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ane.books.plan import digest_of
from ane.models.tortoise.sampling import Randomness
from ane.speech.request import Run, SpeechRequest
from ane.speech.settings import check_option
from ane.speech.words import SpokenWord, matched_words
from ane.text import Lexicon
from ane.text.cast import Cast
from ane.text.passages import last_voice, without_commands, without_faulty_commands

if TYPE_CHECKING:
    from ane.models.fastspeech.settings import FastSpeechSettings
    from ane.models.fastspeech.synthesizer import FastSpeechSynthesizer
    from ane.models.kitten.settings import KittenSettings
    from ane.models.kitten.synthesizer import KittenSynthesizer
    from ane.models.tortoise.pipeline import DecodingSignals
    from ane.models.tortoise.settings import Settings
    from ane.models.tortoise.synthesizer import Synthesizer
    from ane.voices import Voice

WITHOUT_EFFECT = ("lanes", "batch")         # settings that change the speed of the work, and not what is spoken

MAX_CHECKED_SPEED = 1.5     # above it, spoken words can be as short as skipped ones


@dataclass(frozen=True)
class SpokenChunk:
    """The sound (S,) float32 of a chunk, warnings, its words in the sound's time if timed, and signals of its codes."""

    audio: np.ndarray
    notes: list[str] = field(default_factory=list)
    words: Sequence[SpokenWord] = ()
    decoded: Sequence["DecodingSignals"] = ()


class BookSpeaker(Protocol):
    """Speaks one chunk a request. Equal text and seed give equal sound, whatever was spoken before.

    Attributes:
        model, voice: digests; settings: JSON. See ``SpeechIdentity``.
        lengths: desired and maximum characters of a chunk; None: whole paragraphs.
        seeded: whether another seed gives another sound.
        aligned: whether times of words are exact enough to tell that a word was skipped.
    """

    sample_rate: int
    seeded: bool
    aligned: bool
    model: str
    voice: str
    settings: Mapping[str, Any]
    lengths: tuple[int, int] | None

    def respell(self, text: str) -> str:
        """A text as the lexicon spells it."""

    def speak(self, text: str, seed: int) -> SpokenChunk:
        """Speak a chunk. Raises UserError when it cannot be spoken."""


class SynthesizerSpeaker:
    """What the speakers of all families share.

    Args:
        lexicon: respells words. It is no part of ``settings``: a chunk depends on its respelled text (``plan_book``).
        cast: what the marks of voices in a text mean. A chunk depends on its own voice alone.
        seed: of a random voice.
    """

    aligned = False

    def __init__(self, synthesizer: Any, settings: Any, lexicon: Lexicon | None = None, cast: Cast | None = None,
                 seed: int = 0):
        self.synthesizer, self.lexicon = synthesizer, lexicon
        self.cast = cast and replace(cast, attributed=False, narrator="")       # documents are marked as a whole
        self._request = SpeechRequest("", seed=seed, settings=settings, cast=self.cast)
        self._named: dict[str, str] = {}
        self.model: str = synthesizer.model.identity
        self.settings: Mapping[str, Any] = settings_of(settings)

    def respell(self, text: str) -> str:
        """As the lexicon spells it, with the digest of its voice. Raises UserError for a voice that is not there."""
        name = last_voice(text.removesuffix("[voice]"))
        if name and name not in self._named:
            self._named[name] = voice_digest(self.synthesizer.named_voice(name, replace(self._request, text=text),
                                                                          Run()))
        respelled = self.lexicon(text) if self.lexicon else text
        return f"{respelled} {self._named[name]}" if name else respelled

    def spoken(self, text: str, **request: Any) -> SpokenChunk:
        """Speak a chunk. What looks like a faulty pause is the author's text, and is left out with a note."""
        plain, removed = without_faulty_commands(text)
        speech = self.synthesizer.speak(plain, lexicon=self.lexicon, ssml=False, cast=self.cast, **request)
        notes = [f"{command} is no pause that can be made, and was left out" for command in removed]
        words = speech.words
        if words and (removed or self.lexicon):
            words = matched_words(without_commands(text), [(word.word, (word.start, word.end)) for word in words])
        return SpokenChunk(speech.audio, [*notes, *speech.notes], words, speech.details.get("decoded", ()))


class TortoiseSpeaker(SynthesizerSpeaker):
    """Tortoise. Chunks do not share the decoder's lanes: a sound is equal alone and in company up to rounding only.

    Args:
        word_times: time words, for the output.
        checked: time words, if the model states its heads, so that the check finds those that were skipped.
        speed: as in ``Synthesizer.speak``; words are not timed for the check above ``MAX_CHECKED_SPEED``.
    """

    sample_rate, seeded = 24000, True

    def __init__(self, synthesizer: "Synthesizer", voice: "Voice", settings: "Settings", word_times: bool = False,
                 lexicon: Lexicon | None = None, checked: bool = False, speed: float = 1.0, cast: Cast | None = None,
                 seed: int = 0):
        super().__init__(synthesizer, settings, lexicon, cast, seed)
        if speed != 1:      # left out at 1, so that the keys of existing jobs stay valid
            self.settings = {**self.settings, "speed": speed}
        self.speed = speed
        self.aligned = bool(synthesizer.model.config("autoregressive").alignment_heads) and speed <= MAX_CHECKED_SPEED
        self.word_times = word_times or (checked and self.aligned)
        self._voice, self.lengths = voice, settings.split
        self.voice = voice_digest(voice)
        self._settings = replace(settings, split=settings.split and (settings.split[1], settings.split[1]))

    def speak(self, text: str, seed: int) -> SpokenChunk:
        return self.spoken(text, voice=self._voice, settings=self._settings, seed=seed, speed=self.speed,
                           word_times=self.word_times)


class FastSpeechSpeaker(SynthesizerSpeaker):
    """FastSpeech, which has no voices and draws no random numbers."""

    sample_rate, seeded = 22050, False

    def __init__(self, synthesizer: "FastSpeechSynthesizer", settings: "FastSpeechSettings",
                 lexicon: Lexicon | None = None):
        super().__init__(synthesizer, settings, lexicon)
        self.voice, self.lengths = "", settings.split
        self._settings = replace(settings, split=settings.split and (settings.split[1], settings.split[1]))

    def speak(self, text: str, seed: int) -> SpokenChunk:
        return self.spoken(text, settings=self._settings)


class KittenSpeaker(SynthesizerSpeaker):
    """KittenTTS and Kokoro, which draw no random numbers that a seed could change."""

    sample_rate, seeded = 24000, False
    lengths: tuple[int, int] | None = (200, 300)

    def __init__(self, synthesizer: "KittenSynthesizer", voice: str | None, settings: "KittenSettings",
                 lexicon: Lexicon | None = None, cast: Cast | None = None):
        super().__init__(synthesizer, settings, lexicon, cast)
        self.voice, self._settings = synthesizer.styles.resolve(voice), settings

    def speak(self, text: str, seed: int) -> SpokenChunk:
        return self.spoken(text, voice=self.voice, settings=self._settings)


def book_speaker(synthesizer: Any, voice: str | None, settings: Any, seed: int, *, speed: float = 1.0,
                 lexicon: Lexicon | None = None, word_times: bool = False, checked: bool = False,
                 cast: Cast | None = None) -> BookSpeaker:
    """The speaker of a synthesizer's family. ``seed``: of a random voice. ``speed``: where it is no setting."""
    family = synthesizer.model.family
    if cast:
        check_option(synthesizer.model, "cast")
        voice = cast.narrator if cast.narrator and voice is None else voice
    if family.name == "tortoise":
        heard = synthesizer.voice(voice, Randomness(seed), settings.clip_mode)
        return TortoiseSpeaker(synthesizer, heard, settings, word_times, lexicon, checked, speed, cast, seed)
    if synthesizer.model.takes_voices:
        return KittenSpeaker(synthesizer, voice, settings, lexicon, cast)
    return FastSpeechSpeaker(synthesizer, settings, lexicon)


def voice_digest(voice: Any) -> str:
    """What identifies a voice: its name, or the digest of its latents."""
    return voice if isinstance(voice, str) else digest_of(
        [latent.tobytes().hex() for latent in (voice.ar, voice.diffusion, *voice.clip_mels)])


def settings_of(settings: Any) -> dict[str, Any]:
    """The settings that change the sound. The lengths of chunks do so through their texts alone."""
    return {name: value for name, value in asdict(settings).items() if name not in (*WITHOUT_EFFECT, "split", "best")}
