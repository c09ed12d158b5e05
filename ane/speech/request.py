"""Describe a request for speech, the context in which it is worked on, and the limits of its text."""

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
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from ane.text import Lexicon, is_ssml, read_passages, without_markdown
from ane.text.cast import Cast
from ane.text.passages import Passage, Quotation

FREE = 4096  # characters that a lexicon may add to any text, however short


@validated
class TextLimits:
    """Limits on the text of one request.

    Attributes:
        silence: Most seconds of silence that all pauses of the text may add up to.
        expansion: How many times as long a lexicon may make the text.
    """

    silence: float = Field(default=600.0, gt=0)
    expansion: float = Field(default=4.0, ge=1)


@dataclass
class TextUsage:
    """Silence and characters that the texts of one request have used so far."""

    limits: TextLimits = field(default_factory=TextLimits)
    silence: float = 0.0  # seconds
    sent: int = 0  # characters that were sent
    spelled: int = 0  # characters after the lexicon

    def add(self, sent: str, passages: Iterable[Passage]) -> None:
        """Count a text and its passages. Raises UserError if they exceed the limits."""
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
# phonemes in braces, at least one of them a vowel with its stress
ARPABET = re.compile(r"\{\s*(?=[^{}]{0,200}[AEIOU][A-Z][012])[A-Z]{1,2}[012]?(?:\s+[A-Z]{1,2}[012]?){0,40}\s*\}")


def as_voice(voice: Any) -> Any:
    """Check a voice, and turn a ``Path`` into text. Raises UserError for an object that no model takes."""
    if voice is None or isinstance(voice, str):
        return voice
    if isinstance(voice, Path):
        return os.path.abspath(voice)  # it has a separator, so that it is not taken for a name
    from ane.voices import Voice  # imports torch, which flags do not need

    if not isinstance(voice, Voice):
        got = "an array: make a voice of it with voice_of_clips" if isinstance(voice, np.ndarray) else repr(voice)
        raise UserError(f"voice must be a name, a path or a voice from prepare, got {got}", "voice")
    return voice


def as_lexicon(lexicon: Any) -> Any:
    """Turn a mapping from words to respellings into a lexicon, and return anything else as it is."""
    return Lexicon(lexicon) if isinstance(lexicon, Mapping) else lexicon


def report_nothing(phase: str, done: int, total: int, note: str) -> None:
    """Do nothing. This is the default progress callback."""


@validated
class SpeechRequest:
    """A text and how to speak it.

    ``Speaker.speak`` takes these fields as arguments. The flags of commands and the bodies of the server's requests are
    made from them too.

    Attributes:
        text: Text to speak. It may contain pauses, such as [pause:1.5s], or be SSML.
        voice: A name, a path (text or ``Path``), a mix as on the command line, or a voice from ``Speaker.prepare``.
            ``None`` means the model's default voice.
        preset: Name of one of the model's presets. Settings stored with the model are combined with it.
        seed: Number, at least 0, that repeats the same random choices. ``None`` means the model's own seed or a random
            one. The result has the seed.
        settings: ``ane.Settings`` that change the preset's settings, or an object of the class ``Speaker.settings``,
            without a preset. ``None`` keeps the preset's settings.
        speed: Speed of the speech. 2 is twice as fast as 1.
        lexicon: ``Lexicon``, or mapping from words to respellings. It can also respell letters of other scripts.
        ssml: Whether the text is SSML. ``None`` means that it is if it begins with "<speak".
        markdown: Whether the text is Markdown or has HTML tags. ``None`` means that it is if it has their marks.
        word_times: Whether to time each word, even if that takes longer.
        cast: Voices for quotations, and meaning of [voice:NAME] in the text: a ``Cast``, its fields, or a TOML file.
        quote_voice: Voice for quotations whose speaker is unknown or not in the cast.
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
        api="random seed, to get the same sound again. It is an error if the model has no random choices",
        ge=0,
    )
    settings: Any = None
    speed: float = setting(
        1.0,
        "speed of speech: 2 is twice as fast (default: 1, about 150 words per minute)",
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
        """The cast, of a request from ``Speaker.with_defaults``."""
        assert self.cast is None or isinstance(self.cast, Cast)
        return self.cast

    def changed(self, **fields: Any) -> Self:
        """Return a copy of the request with these fields, or the request itself if it has them already."""
        new = {name: value for name, value in fields.items() if getattr(self, name) is not value}
        return replace(self, **new) if new else self


REQUEST_OPTIONS = {option.name: option for option in options_of(SpeechRequest)}


def check_option(model: Model, name: str) -> None:
    """Raise UserError if an option of requests or settings has no effect on this model."""
    family = model.family
    if family.settings is None:
        family.synthesizer(model, None)  # raises an error, because this model does not speak
    options = family.settings.options() if family.settings else {}
    if name in REQUEST_OPTIONS:
        needs = REQUEST_OPTIONS[name].needs
        takes = not needs or bool(getattr(model, needs))
    else:
        takes = name in options or name == "stream" or (name == "no_split" and "split" in options)
    if not takes:
        raise UserError(f"{name} has no effect on {family.title} models, and {model.name} is one: leave it out", name)


def chosen_settings(kind: type[SpeechSettings], model: Model, preset: str | None, settings: Any) -> Any:
    """Return the settings for a request.

    Args:
        kind: Class of the model's settings.
        model: The model. Its stored settings are the defaults.
        preset: Name of a preset, or ``None`` for the model's own.
        settings: An object of ``kind``, which is returned as it is, or ``SpeechOptions`` that change the preset, or
            ``None``.

    Raises:
        UserError: An option has no effect, the preset is unknown, the settings have another class, or an object of
            ``kind`` comes with a preset.
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
            f"settings must be ane.Settings or, for the {model.family.title} model {model.name}, "
            f"{kind.__module__}.{kind.__name__}, got {type(settings).__module__}.{type(settings).__name__}",
            "settings",
        )
    return settings


@dataclass
class SpeechContext:
    """Progress, timing, limits, shared lanes and voices of one request. Only the voices change its sound.

    Attributes:
        progress: Function that is called with (phase, done, total, note).
        timeline: Timeline that records when each phase runs.
        lanes: Lanes that several requests share. ``None`` means that a request creates lanes if it needs some.
        priority: Function that returns the priority among requests that share lanes.
        check: Function that raises an error when nobody wants the sound any more. Any thread may call it.
        batched: Whether to work on chunks in groups, phase by phase, and to release the networks between phases.
            Otherwise each chunk is worked on as soon as possible.
        usage: Usage of the request's text so far, and its limits.
        voice: Voice that speaks until the text names one: the last voice of the text before.
        named_voice: Function that looks up a voice which the text names. ``None`` means the model's voice of that name.
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
        """Yield a sound, then report progress."""
        yield from sound
        self.progress(phase, done, total, "")

    def passages(self, request: SpeechRequest, arpabet: bool = False) -> list[Passage]:
        """Read the passages of the request's text (``read_passages``), and count them in ``usage``.

        Args:
            request: A complete request.
            arpabet: Whether the model takes phonemes in braces.

        Raises:
            UserError: The markup is wrong, the text exceeds its limits, or it has phonemes in braces that the model
                does not take.
        """
        ssml = is_ssml(request.text) if request.ssml is None else request.ssml
        text = request.text if ssml else without_markdown(request.text, request.markdown)
        quotations: Sequence[Quotation] = ()
        if (cast := request.roles) and cast.attributed and cast.voices:
            if ssml:
                raise UserError("cast has no effect on quotations in SSML: use <voice>, or leave it out", "cast")
            quotations = cast.quotations_in(text)
        passages = read_passages(text, request.lexicon, ssml, False, self.voice, quotations)
        matches = () if arpabet else (ARPABET.search(passage.text) for passage in passages)
        if phonemes := next(filter(None, matches), None):
            raise UserError(
                f"{phonemes[0]}: only FastSpeech models take phonemes in braces: write the word or a respelling"
            )
        self.usage.add(request.text, passages)
        return passages
