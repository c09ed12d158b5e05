"""One interface to the synthesizers of all models: a text and a seed in, sound out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.books.plan import digest_of
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.words import SpokenWord, matched_words
from ane.system.errors import UserError
from ane.text.cast import cast_of
from ane.text.passages import COMMAND, is_voice, pause_seconds, without_commands

if TYPE_CHECKING:
    from ane.models.tortoise.pipeline import DecodingSignals
    from ane.speech.speaker import Speaker

# settings that change the speed of the work, and not what is spoken; a chunk has a seed and a length of its own
WITHOUT_EFFECT = ("lanes", "batch", "best", "split", "seed")
# settings that earlier versions lacked, left out at this value, so that the keys of existing jobs stay valid
LATER = {"british": False}
LENGTHS = 200, 300  # characters of a chunk, of models that state none
MAX_CHECKED_SPEED = 1.5  # above it, spoken words can be as short as skipped ones


@dataclass
class SpokenChunk:
    """The sound of a chunk and the facts that are known of it.

    Attributes:
        audio: The sound (S,) float32.
        notes: Warnings.
        words: The words in the sound's time, if they were timed.
        decoded: Signals of the codes that made it, if this process did.
        signals: The signals that a job keeps of it (``ane.books.judging.ChunkSignals``). Without them, they are
            computed from the sound.
        stored: Whether it was read from a job.
        problems: The problems that a check found in it.
    """

    audio: np.ndarray
    notes: list[str] = field(default_factory=list)
    words: Sequence[SpokenWord] = ()
    decoded: Sequence["DecodingSignals"] = ()
    signals: Mapping[str, Any] | None = None
    stored: bool = False
    problems: Sequence[str] = ()


class BookSpeaker:
    """Speaks one chunk a request with a synthesizer of any family. Equal text and seed give equal sound, whatever was
    spoken before; of Tortoise alone and in company up to rounding, since chunks do not share the decoder's lanes.

    Args:
        request: How to speak every chunk, with settings and without a text. Its seed is that of a random voice. Its
            cast says which voices the names of chunks mean. A chunk depends on its own voice and its respelled text
            alone, so neither cast nor lexicon are part of the speaker's ``settings``.
        checked: Whether to time words, if the model states its heads, so that the check finds those that were skipped.

    Attributes:
        model, voice: digests; settings: JSON. See ``SpeechIdentity``.
        lengths: desired and maximum characters of a chunk; None: whole paragraphs.
        seeded: whether another seed gives another sound.
        aligned: whether times of words are exact enough to tell that a word was skipped.

    Raises:
        UserError: an unknown voice, or a cast for a model of one voice.
    """

    def __init__(self, synthesizer: "Speaker", request: SpeechRequest, checked: bool = False):
        settings, speed, cast = request.settings, request.speed, cast_of(request.cast, request.quote_voice)
        self.synthesizer, self.lexicon = synthesizer, request.lexicon
        model, self.sample_rate, self.seeded = synthesizer.model, synthesizer.sample_rate, synthesizer.model.uses_seed
        self.lengths: tuple[int, int] | None = getattr(settings, "split", LENGTHS)
        changes = {"split": (self.lengths[1], self.lengths[1])} if self.lengths and hasattr(settings, "split") else {}
        self.aligned = (
            "autoregressive" in model.networks
            and speed <= MAX_CHECKED_SPEED
            and bool(model.config("autoregressive").alignment_heads)
        )
        request = synthesizer.with_defaults(
            request.changed(
                cast=cast and replace(cast, attributed=False),
                quote_voice=None,  # whole documents are attributed
                seed=request.seed if self.seeded else None,
                settings=replace(settings, **changes),
                ssml=False,
                markdown=False,
                word_times=request.word_times or (checked and self.aligned),
            )
        )
        self._request = request.changed(voice=synthesizer.voice_of(request, SpeechContext()))
        self.model, self.voice = model.identity, voice_digest(self._request.voice)
        # of models whose sound is stretched, a speed of 1 is left out, so that the keys of existing jobs stay valid
        self.settings: Mapping[str, Any] = {
            **({} if speed == 1 and synthesizer.stretches else {"speed": speed}),
            **settings_of(settings),
        }
        self._named: dict[str, str] = {}

    def respell(self, text: str) -> str:
        """Return the text as the lexicon spells it."""
        return self.lexicon(text) if self.lexicon else text

    def spoken_as(self, marked: str, voice: str) -> str:
        """Return a marked text as the lexicon spells it, with the digest of its voice if it has one.

        Raises:
            UserError: There is no such voice.
        """
        if voice and voice not in self._named:
            self._named[voice] = voice_digest(
                self.synthesizer.named_voice(voice, replace(self._request, text=marked), SpeechContext())
            )
        return f"{self.respell(marked)} {self._named[voice]}" if voice else self.respell(marked)

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        """Speak a chunk in a named voice, or in the book's voice.

        A faulty pause is the author's text, so the speaker leaves it out, with a note.
        """
        plain, removed = without_faulty_commands(text)
        request = replace(self._request, text=plain, seed=seed if self.seeded else None)
        speech = self.synthesizer.speech_of(request, SpeechContext(batched=True, voice=voice))
        notes = [f"{command} is no pause that can be made, and was left out" for command in removed]
        words = speech.words
        if words and (removed or self.lexicon):
            words = matched_words(without_commands(text), [(word.word, (word.start, word.end)) for word in words])
        return SpokenChunk(speech.audio, [*notes, *speech.notes], words, speech.details.get("decoded", ()))


def voice_digest(voice: Any) -> str:
    """What identifies a voice: its name, or the digest of its latents; "" for the only one of a model."""
    return (
        voice or ""
        if voice is None or isinstance(voice, str)
        else digest_of([latent.tobytes().hex() for latent in (voice.ar, voice.diffusion)])
    )


def settings_of(settings: Any) -> dict[str, Any]:
    """The settings that change the sound of a chunk."""
    return {
        name: value
        for name, value in asdict(settings).items()
        if name not in WITHOUT_EFFECT and LATER.get(name) is not value
    }


def without_faulty_commands(text: str) -> tuple[str, list[str]]:
    """A text without what ``read_pauses`` refuses, and this: of an author who knew nothing of such commands."""
    removed: list[str] = []

    def kept(match: re.Match[str]) -> str:
        try:
            if not is_voice(match):
                pause_seconds(match, "")
        except UserError:
            removed.append(match[0])
            return " "
        return match[0]

    return COMMAND.sub(kept, text), removed
