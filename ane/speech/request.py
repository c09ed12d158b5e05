"""Define a request for speech, the limits of its text, and the context that the work on the request shares."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, Field

from ane.bundles import Model
from ane.speech.lanes import Lanes
from ane.speech.options import SpeechOptions
from ane.speech.settings import SpeechSettings, options_of, setting
from ane.speech.turns import Urgency
from ane.system.checked import validated
from ane.system.errors import NoEffectError, UserError, short
from ane.system.timeline import Timeline
from ane.text import Lexicon, is_ssml, read_passages, without_markdown
from ane.text.cast import Cast
from ane.text.passages import Passage, Quotation

FREE = 4096  # a lexicon may add this many characters to any text, even if the text is short


@validated
class TextLimits:
    """Limits on the text of one request.

    Attributes:
        silence: Largest sum of the pauses in the text, in seconds.
        expansion: Largest factor by which a lexicon may lengthen the text.
    """

    silence: float = Field(default=600.0, gt=0)
    expansion: float = Field(default=4.0, ge=1)


@dataclass
class TextUsage:
    """Counts the silence and the characters in the texts of one request, and enforces limits on both.

    Attributes:
        limits: Limits on the silence, and on the factor by which a lexicon lengthens the texts.
        silence: Seconds of silence in all texts so far.
        sent: Number of characters that the client has sent so far.
        spelled: Number of characters in the same texts after the lexicon has respelled them.
    """

    limits: TextLimits = field(default_factory=TextLimits)
    silence: float = 0.0
    sent: int = 0
    spelled: int = 0

    def add(self, sent: str, passages: Iterable[Passage]) -> None:
        """Count the characters of a text, and the silence of its passages.

        Raises UserError if all texts together exceed a limit.
        """
        self.sent += len(sent)
        for passage in passages:
            self.silence += passage.silence
            self.spelled += len(passage.text)
        if self.silence > self.limits.silence:
            raise UserError(
                f"the text asks for {self.silence:g} s of silence, and one request may have at most "
                f"{self.limits.silence:g} s: shorten its pauses, or speak it in parts"
            )
        if self.spelled > self.limits.expansion * self.sent + FREE:
            raise UserError(
                f"the lexicon turns {self.sent} characters into {self.spelled}, and may make at most "
                f"{self.limits.expansion:g} times as many: shorten its respellings"
            )


Progress = Callable[[str, int, int, str], None]  # (phase, done, total, note)
# ARPABET phonemes in braces, of which at least one is a vowel with its stress digit, such as {HH AH0 L OW1}
ARPABET = re.compile(r"\{\s*(?=[^{}]{0,200}[AEIOU][A-Z][012])[A-Z]{1,2}[012]?(?:\s+[A-Z]{1,2}[012]?){0,40}\s*\}")


def as_voice(voice: Any) -> Any:
    """Check the type of a voice, and turn a ``Path`` into text. Raises UserError if no model takes this type."""
    if voice is None or isinstance(voice, str):
        return voice
    if isinstance(voice, Path):
        return os.path.abspath(voice)  # an absolute path has a separator, so nobody mistakes it for a voice's name
    from ane.voices import Voice  # imports torch, which flags do not need

    if not isinstance(voice, Voice):
        got = "an array: make a voice of it with voice_of_clips" if isinstance(voice, np.ndarray) else repr(voice)
        raise UserError(f"voice must be a name, a path or a voice from prepare, got {got}", "voice")
    return voice


def as_lexicon(lexicon: Any) -> Any:
    """Turn a mapping from words to respellings into a ``Lexicon``. Return any other object unchanged.

    Raises:
        InvalidValueError: The lexicon is the path of a file.
    """
    if isinstance(lexicon, str | Path):
        raise UserError(f"lexicon must be a Lexicon or a mapping, got {str(lexicon)!r}: use read_lexicon", "lexicon")
    return Lexicon(lexicon) if isinstance(lexicon, Mapping) else lexicon


def report_nothing(phase: str, done: int, total: int, note: str) -> None:
    """Do nothing. This is the default progress callback."""


@validated
class SpeechRequest:
    """A text and how to speak it.

    ``Speaker.speak`` takes these fields as arguments. The commands derive their flags from the fields, and the server
    derives the bodies of its requests from them.

    Attributes:
        text: Text to speak. The text may be SSML. Otherwise, it may contain pauses, such as [pause:1.5s].
        voice: A name, a path (as text or as ``Path``), a mix of voices such as "a:0.3&b:0.7", or a voice from
            ``Speaker.prepare``. ``None`` means the model's default voice.
        preset: Name of one of the model's presets. The preset is combined with the settings in the model's bundle.
            ``None`` means the model's default preset.
        seed: Random seed, at least 0. The same seed gives the same sound again. ``None`` means the seed that the model
            stores, or a random seed if the model stores none. The result reports the seed.
        settings: ``ane.Settings`` that change the preset's settings. If ``preset`` is ``None``, this may also be an
            object of the class ``Speaker.settings``. ``None`` keeps the preset's settings.
        speed: Speed of the speech. 2 is twice as fast as 1.
        lexicon: ``Lexicon``, or a mapping from words to respellings. A lexicon can also respell letters of scripts that
            the model does not read.
        ssml: Whether the text is SSML. ``None`` means that a text is SSML if it begins with "<speak".
        markdown: Whether the text is Markdown or has HTML tags. ``None`` means that the marks in the text decide.
        word_times: Whether to find out when each word is heard, even if that takes longer.
        cast: Voices for the speakers of quotations and for [voice:NAME] in the text. Pass a ``Cast``, a mapping with
            the fields of one, or the path of a TOML file.
        quote_voice: Voice for a quotation whose speaker is unknown or not in the cast.
    """

    text: str
    voice: Annotated[Any, BeforeValidator(as_voice)] = setting(
        None,
        "voice to speak with: a name, a folder of clips, a sound file, a voice file, 'random', or a mix such as 'a&b' "
        "or 'a:0.3&b:0.7'. '?' lists the names (default: the model's own)",
        metavar="VOICE",
        needs="takes_voices",
    )
    preset: str | None = setting(
        None,
        "preset, which sets how much work to do. '?' lists the presets (default: the model's own)",
        metavar="NAME",
        needs="presets",
        api="name of a preset, as for `ane say --preset`",
    )
    seed: int | None = setting(
        None,
        "random seed, to repeat a result (default: a new one or the model's own, which is printed)",
        metavar="N",
        needs="uses_seed",
        api="random seed, to get the same sound again. A seed is an error if the model has no random choices",
        ge=0,
    )
    settings: Any = None
    speed: float = setting(
        1.0,
        "speed of speech: 2 is twice as fast (default: 1, the usual speed of the voice)",
        metavar="FACTOR",
        api="speed, more than 1 is faster. The range depends on the model, as for `ane say --speed`",
    )
    lexicon: Annotated[Lexicon | None, BeforeValidator(as_lexicon)] = setting(
        None, "file that respells words, with lines of word, tab, respelling", metavar="FILE"
    )
    ssml: bool | None = setting(None, "whether the text is SSML (default: if it begins with <speak)")
    markdown: bool | None = setting(
        None, "whether the text is Markdown or has HTML tags (default: if it has their marks)"
    )
    word_times: bool = setting(
        False,
        "time each word, even if that takes longer",
        api="with stream_format sse, send events that say when each word is heard",
    )
    cast: Cast | Path | str | Mapping[str, Any] | None = setting(
        None,
        "file with the voices of the narrator, quotations and speakers. With or without it, [voice:NAME] in the text "
        "changes the voice, and [voice] changes it back",
        metavar="FILE.toml",
        needs="takes_voices",
    )
    quote_voice: str | None = setting(None, "voice for quotations", metavar="VOICE", needs="takes_voices")

    @property
    def roles(self) -> Cast | None:
        """The cast as a ``Cast``, or ``None``. This property works only for requests from ``Speaker.with_defaults``."""
        assert self.cast is None or isinstance(self.cast, Cast)
        return self.cast

    @property
    def voices_of_quotations(self) -> str:
        """Name of the field that gives quotations a voice."""
        return "cast" if self.quote_voice is None else "quote_voice"

    def changed(self, **fields: Any) -> Self:
        """Return a copy of the request with these fields, or the request itself if no field changes."""
        new = {name: value for name, value in fields.items() if getattr(self, name) is not value}
        return replace(self, **new) if new else self


REQUEST_OPTIONS = {option.name: option for option in options_of(SpeechRequest)}


def check_option(model: Model, name: str) -> None:
    """Raise NoEffectError if an option of requests or settings has no effect on this model."""
    family = model.family
    if family.settings is None:
        family.synthesizer(model, None)  # raises the error that says that this model does not speak
    options = family.settings.options() if family.settings else {}
    needs = ""
    if name in REQUEST_OPTIONS:
        needs = REQUEST_OPTIONS[name].needs
        takes = not needs or bool(getattr(model, needs))
    else:
        takes = name in options or name == "stream" or (name == "no_split" and "split" in options)
    if not takes and needs == "takes_voices" and model.default_voice:
        raise NoEffectError(name, f"on {model.name}, whose only voice is {model.default_voice}", "leave it out")
    if not takes:
        raise NoEffectError(name, f"on {family.title} models, and {model.name} is one", "leave it out")


def chosen_settings(kind: type[SpeechSettings], model: Model, preset: str | None, settings: Any) -> Any:
    """Combine the model's stored settings, a preset, and the settings of a request.

    Args:
        kind: Class of the model's settings.
        model: The model. The settings in its bundle are the defaults.
        preset: Name of a preset. ``None`` means the model's default preset.
        settings: ``SpeechOptions``, which change the preset's settings, or an object of ``kind``, which the function
            returns unchanged. ``None`` keeps the preset's settings.

    Raises:
        UserError: An option has no effect, the preset is unknown, ``settings`` has another class, or the caller passes
            both a preset and an object of ``kind``.
    """
    if settings is None:
        return kind.of(preset, model.settings)
    if isinstance(settings, SpeechOptions):
        for name in (options := settings.chosen_options()):
            check_option(model, name)
        return kind.of(preset, model.settings).changed(options)
    if preset is not None:
        raise UserError("settings and preset exclude each other: pass one of them", "settings")
    if not isinstance(settings, kind):
        raise UserError(
            f"settings must be ane.Settings or, for the {model.family.title} model {model.name}, an object of the "
            f"speaker's class `settings`, got {short(settings)}",
            "settings",
        )
    return settings


@dataclass
class SpeechContext:
    """State that the work on one request needs in addition to the request. Only the voices change the sound.

    Attributes:
        progress: Function that the work calls with (phase, done, total, note).
        timeline: Timeline that records when each phase runs.
        lanes: Decoder lanes (rows of its batch) that several requests share. ``None`` means that the request creates
            lanes if its model needs them.
        priority: Function that returns how urgent this request is among the requests that share the lanes.
        check: Function that raises an error when nobody wants the sound any more. Any thread may call it.
        batched: Whether the model works on all chunks in one phase, then releases that phase's networks and starts the
            next phase. Otherwise, the model finishes each chunk as soon as possible.
        usage: Counts of the silence and the characters in the request's texts so far, and limits on them.
        voice: Name of the voice that speaks until the text names another voice. If the text continues an earlier text,
            this is the earlier text's last voice.
        named_voice: Function that looks up a voice which the text names. ``None`` means that the name is one of the
            model's voices.
    """

    progress: Progress = report_nothing
    timeline: Timeline = field(default_factory=Timeline)
    lanes: Lanes | None = None
    priority: Urgency = lambda: (0, 0.0)
    check: Callable[[], None] = lambda: None
    batched: bool = False
    usage: TextUsage = field(default_factory=TextUsage)
    voice: str = ""
    named_voice: Callable[[str], Any] | None = None

    def reporting(self, sound: Iterator[np.ndarray], phase: str, done: int, total: int) -> Iterator[np.ndarray]:
        """Yield the pieces of a sound, then report that chunk ``done`` of ``total`` is complete."""
        yield from sound
        self.progress(phase, done, total, "")

    def passages(self, request: SpeechRequest, arpabet: bool = False) -> list[Passage]:
        """Divide the request's text into passages, which have one voice and delivery each, and count them in ``usage``.

        Args:
            request: A complete request.
            arpabet: Whether the model takes phonemes in braces.

        Raises:
            UserError: The markup is wrong, the text exceeds its limits, or the text has phonemes in braces although the
                model takes none.
        """
        ssml = is_ssml(request.text) if request.ssml is None else request.ssml
        text = request.text if ssml else without_markdown(request.text, request.markdown)
        quotations: Sequence[Quotation] = ()
        if (cast := request.roles) and cast.attributed and cast.voices:
            if ssml:
                name, advice = request.voices_of_quotations, "use <voice>, or leave it out"
                raise NoEffectError(name, "on quotations in SSML", advice, ("ssml",))
            quotations = cast.quotations_in(text)
        passages = read_passages(text, request.lexicon, ssml, False, self.voice, quotations)
        matches = () if arpabet else (ARPABET.search(passage.text) for passage in passages)
        if phonemes := next(filter(None, matches), None):
            raise UserError(
                f"{phonemes[0]}: only FastSpeech models take phonemes in braces: write the word or a respelling"
            )
        self.usage.add(request.text, passages)
        return passages
