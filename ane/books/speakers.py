"""Speak the chunks of a book with any model that speaks. ``BookSpeaker`` takes a text and a seed, and returns sound."""

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

# settings that do not change the sound, or that are given for every chunk separately, such as its seed
WITHOUT_EFFECT = ("lanes", "batch", "best", "split", "seed")
# Settings that earlier versions lacked, with their defaults. A default is left out, so that keys of old jobs stay
# valid.
LATER = {"british": False}
LENGTHS = 200, 300  # desired and maximum characters of a chunk, for models without such a setting
MAX_CHECKED_SPEED = 1.5  # speed above which spoken words can be as short as skipped words


@dataclass
class SpokenChunk:
    """The sound of a chunk, and facts about it.

    Attributes:
        audio: The sound, (S,) float32.
        notes: Warnings.
        words: The words with their times in the sound, if the words were timed.
        decoded: Signals of the decoder's codes. ``None`` if this process did not speak the chunk.
        signals: The signals that the job stores (``ane.books.judging.ChunkSignals``). ``None`` means that they must be
            measured.
        stored: Whether the sound was read from the job.
        problems: The problems that a check found in the sound.
    """

    audio: np.ndarray
    notes: list[str] = field(default_factory=list)
    words: Sequence[SpokenWord] = ()
    decoded: Sequence["DecodingSignals"] = ()
    signals: Mapping[str, Any] | None = None
    stored: bool = False
    problems: Sequence[str] = ()


class BookSpeaker:
    """A speaker of chunks. It speaks one chunk per request, with a model of any kind.

    The same text and seed always result in the same sound, whatever was spoken before. Two chunks never share a decoder
    batch, so Tortoise's sound differs between processes only by rounding.

    Args:
        request: Settings for every chunk, without a text. Its seed chooses a random voice. Its cast maps names in the
            text to voices. ``settings`` does not contain the cast or the lexicon, because a chunk depends only on its
            own voice and its respelled text.
        checked: Whether a check will look for skipped words. The check needs the times of the words, so the speaker
            times them if ``aligned`` is true.

    Attributes:
        model: Digest of the model, for ``SpeechIdentity``.
        voice: Digest of the voice, for ``SpeechIdentity``.
        settings: Settings as JSON values, for ``SpeechIdentity``.
        lengths: Desired and maximum number of characters per chunk. ``None`` makes every paragraph one chunk.
        seeded: Whether the seed changes the sound.
        aligned: Whether the word times are exact enough to find skipped words.

    Raises:
        UserError: The voice is unknown, or there is a cast but the model has only one voice.
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
                quote_voice=None,  # the plan has already attributed the quotations of the whole document
                seed=request.seed if self.seeded else None,
                settings=replace(settings, **changes),
                ssml=False,
                markdown=False,
                word_times=request.word_times or (checked and self.aligned),
            )
        )
        self._request = request.changed(voice=synthesizer.voice_of(request, SpeechContext()))
        self.model, self.voice = model.identity, voice_digest(self._request.voice)
        # If the model's sound is stretched to a speed, a speed of 1 is left out, so that keys of old jobs stay valid.
        self.settings: Mapping[str, Any] = {
            **({} if speed == 1 and synthesizer.stretches else {"speed": speed}),
            **settings_of(settings),
        }
        self._named: dict[str, str] = {}

    def respell(self, text: str) -> str:
        """Respell a text with the lexicon."""
        return self.lexicon(text) if self.lexicon else text

    def spoken_as(self, marked: str, voice: str) -> str:
        """Respell a chunk's marked text with the lexicon. If the chunk has a voice, add the digest of this voice.

        Raises:
            UserError: There is no such voice.
        """
        if voice and voice not in self._named:
            self._named[voice] = voice_digest(
                self.synthesizer.named_voice(voice, replace(self._request, text=marked), SpeechContext())
            )
        return f"{self.respell(marked)} {self._named[voice]}" if voice else self.respell(marked)

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        """Speak a chunk with a named voice, or with the book's voice.

        The method ignores impossible commands for pauses, because the author did not mean them as commands. A warning
        lists these commands.
        """
        plain, removed = without_faulty_commands(text)
        request = replace(self._request, text=plain, seed=seed if self.seeded else None)
        speech = self.synthesizer.speech_of(request, SpeechContext(batched=True, voice=voice))
        notes = [
            f"{command} is "
            + ("a command of macOS without effect" if is_foreign(command) else "not a possible pause")
            + ", so it was left out"
            for command in removed
        ]
        words = speech.words
        if words and (removed or self.lexicon):
            words = matched_words(without_commands(text), [(word.word, (word.start, word.end)) for word in words])
        return SpokenChunk(speech.audio, [*notes, *speech.notes], words, speech.details.get("decoded", ()))


def is_foreign(command: str) -> bool:
    """Return whether a command in the text is for macOS's `say`, such as [[rate 200]], and is not a pause."""
    return command.startswith("[[") and not command.startswith("[[slnc")


def voice_digest(voice: Any) -> str:
    """Return the identity of a voice: a name, the digest of latents, or "" if the model has only one voice."""
    return (
        voice or ""
        if voice is None or isinstance(voice, str)
        else digest_of([latent.tobytes().hex() for latent in (voice.ar, voice.diffusion)])
    )


def settings_of(settings: Any) -> dict[str, Any]:
    """Return the settings that change how a chunk sounds."""
    return {
        name: value
        for name, value in asdict(settings).items()
        if name not in WITHOUT_EFFECT and LATER.get(name) is not value
    }


def without_faulty_commands(text: str) -> tuple[str, list[str]]:
    """Remove the commands that ``read_pauses`` would reject. Return the text, and the commands that were removed."""
    removed: list[str] = []

    def checked(match: re.Match[str]) -> str:
        try:
            if not is_voice(match):
                pause_seconds(match, "")
        except UserError:
            removed.append(match[0])
            return " "
        return match[0]

    return COMMAND.sub(checked, text), removed
