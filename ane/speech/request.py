"""A request for speech, and the context of its work."""

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

FREE = 4096  # characters that a lexicon may add to any text


@validated
class TextLimits:
    """Limits of one request."""

    silence: float = Field(default=600.0, gt=0)  # seconds of all pauses of the text together
    expansion: float = Field(default=4.0, ge=1)  # of the text by its lexicon, relative to what was sent


@dataclass
class TextUsage:
    """What the texts of one request have cost so far."""

    limits: TextLimits = field(default_factory=TextLimits)
    silence: float = 0.0
    sent: int = 0
    spelled: int = 0

    def add(self, sent: str, passages: Iterable[Passage]) -> None:
        """Count a text and its passages. Raises UserError when they are beyond the budget."""
        self.sent += len(sent)
        for passage in passages:
            self.silence += passage.silence
            self.spelled += len(passage.text)
        if self.silence > self.limits.silence:
            raise UserError(
                f"the text asks for {self.silence:g} s of silence, at most {self.limits.silence:g} s can "
                "be made at a time: shorten its pauses, or speak it in parts"
            )
        if self.spelled > self.limits.expansion * self.sent + FREE:
            raise UserError(
                f"the lexicon makes {self.spelled} characters of {self.sent}, at most "
                f"{self.limits.expansion:g} times as many can be spoken: shorten its respellings"
            )


Progress = Callable[[str, int, int, str], None]  # (phase, done, total, note)
# phonemes in braces, of which one is a vowel with its stress
ARPABET = re.compile(r"\{\s*(?=[^{}]{0,200}[AEIOU][A-Z][012])[A-Z]{1,2}[012]?(?:\s+[A-Z]{1,2}[012]?){0,40}\s*\}")


def as_voice(voice: Any) -> Any:
    """Return a voice as requests take it, a path as its text. Raises UserError for what no model takes."""
    if voice is None or isinstance(voice, str):
        return voice
    if isinstance(voice, Path):
        return os.path.abspath(voice)  # with a separator: it is no name
    from ane.voices import Voice  # imports torch, which flags do not need

    if not isinstance(voice, Voice):
        got = "an array: make a voice of it with voice_of_clips" if isinstance(voice, np.ndarray) else repr(voice)
        raise UserError(f"voice must be a name, a path or what prepare returns, got {got}", "voice")
    return voice


def as_lexicon(lexicon: Any) -> Any:
    """Return a lexicon as requests take it. Words and their respellings become one."""
    return Lexicon(lexicon) if isinstance(lexicon, Mapping) else lexicon


def report_nothing(phase: str, done: int, total: int, note: str) -> None:
    """The default progress callback."""


@validated
class SpeechRequest:
    """A text and how to speak it. The fields are declared here alone: ``Speaker.speak`` takes them, and the flags of
    commands and the bodies of the server's requests are made of them.

    Attributes:
        text: The text. It may have pauses, [pause:1.5s], or be SSML.
        voice: A name, a path (also a ``Path``), a mix as on the command line, or what ``Speaker.prepare`` returns. With
            None, the model speaks with its default voice.
        preset: A name of the model's presets, combined with the model's own settings.
        seed: A number, at least 0, that repeats the same random choices. With None, the model takes its own seed, or a
            random one, and the result states it.
        settings: ``ane.Settings`` that change those of the preset, or an object of the speaker's class ``settings``.
            With None, those of the preset.
        speed: 2 is twice as fast as 1.
        lexicon: Respells words, or letters of other scripts: a ``Lexicon``, or words and their respellings.
        ssml: Whether the text is SSML. With None, it is if it begins with "<speak".
        markdown: Whether the text is Markdown, or has tags of HTML. With None, it is if it has their marks.
        word_times: Whether to state when each word is heard, also where that takes longer.
        cast: Who speaks quotations, and what [voice:NAME] in the text means: a ``Cast``, its fields, or a TOML file.
        quote_voice: The voice of quotations whose speaker is not known, or not in the cast.
    """

    text: str
    voice: Annotated[Any, BeforeValidator(as_voice)] = setting(
        None,
        "a name ('?' lists them), a folder of clips, a sound file, a voice file, random, or a mix such as 'a&b' "
        "or 'a:0.3&b:0.7' (default: the model's own)",
        metavar="VOICE",
        needs="takes_voices",
    )
    preset: str | None = setting(
        None,
        "how much work to do; '?' lists the presets (default: the model's own)",
        metavar="NAME",
        needs="presets",
        api="as `ane say --preset`",
    )
    seed: int | None = setting(
        None,
        "random seed, to repeat a result (default: a new one, or the model's own; it is printed)",
        metavar="N",
        needs="uses_seed",
        api="the same seed, the same sound; refused where nothing is random",
        ge=0,
    )
    settings: Any = None
    speed: float = setting(
        1.0,
        "speed of speech: 2 is twice as fast (default: 1, about 150 words a minute)",
        metavar="FACTOR",
        api="more than 1 is faster; how much a model can do, `ane say --speed` says",
    )
    lexicon: Annotated[Lexicon | None, BeforeValidator(as_lexicon)] = setting(
        None, "respell words: lines of word, tab, respelling", metavar="FILE"
    )
    ssml: bool | None = setting(None, "whether the text is SSML (without the flag, if it begins with <speak)")
    markdown: bool | None = setting(
        None, "whether the text is Markdown or has tags of HTML (without the flag, if it has marks)"
    )
    word_times: bool = setting(
        False,
        "time each word, also where that takes longer",
        api="with stream_format sse: events that state when each word is heard",
    )
    cast: Cast | Path | str | Mapping[str, Any] | None = setting(
        None,
        "voices of the narrator, of quotations and of speakers by name; with any, [voice:NAME] in the text "
        "changes the voice, and [voice] changes it back",
        metavar="FILE.toml",
        needs="takes_voices",
    )
    quote_voice: str | None = setting(None, "speak quotations with VOICE", metavar="VOICE", needs="takes_voices")

    @property
    def roles(self) -> Cast | None:
        """The cast of a request that ``Speaker.with_defaults`` returned."""
        assert self.cast is None or isinstance(self.cast, Cast)
        return self.cast

    def changed(self, **fields: Any) -> Self:
        """Return the request with these fields, and itself if it has them already."""
        new = {name: value for name, value in fields.items() if getattr(self, name) is not value}
        return replace(self, **new) if new else self


REQUEST_OPTIONS = {option.name: option for option in options_of(SpeechRequest)}


def check_option(model: Model, name: str) -> None:
    """Raise UserError for an option of a request or of settings that has no effect on this model."""
    family = model.family
    if family.settings is None:
        family.synthesizer(model, None)  # raises: it does not speak
    options = family.settings.options() if family.settings else {}
    if name in REQUEST_OPTIONS:
        needs = REQUEST_OPTIONS[name].needs
        takes = not needs or bool(getattr(model, needs))
    else:
        takes = name in options or name == "stream" or (name == "no_split" and "split" in options)
    if not takes:
        raise UserError(f"{name} has no effect on {family.title} models, and {model.name} is one; leave it out", name)


def chosen_settings(kind: type[SpeechSettings], model: Model, preset: str | None, settings: Any) -> Any:
    """Return the settings that are given, or the model's, of a preset, with the options that are given. Raises
    UserError: an option has no effect, a preset is unknown, or settings are of another class than ``kind`` or are given
    as well as a preset.
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
            f"settings must be ane.Settings, or of {kind.__module__}.{kind.__name__} for {model.name}, "
            f"which is a {model.family.title} model; got {type(settings).__module__}."
            f"{type(settings).__name__}",
            "settings",
        )
    return settings


@dataclass
class SpeechContext:
    """What goes along with one request: progress, timing, limits, shared lanes. None of it changes the sound."""

    progress: Progress = report_nothing
    timeline: Timeline = field(default_factory=Timeline)
    lanes: Lanes | None = None  # those that several requests share; None: a request has its own if it needs some
    priority: Urgency = lambda: (0, 0.0)  # of requests that share lanes
    # raises an error when nobody wants the sound any more; any thread calls it
    check: Callable[[], None] = lambda: None
    # whether chunks are worked on in groups, phase by phase, with networks released between; otherwise one after the
    # other, each as soon as it can be
    batched: bool = False
    usage: TextUsage = field(default_factory=TextUsage)
    voice: str = ""  # who speaks until the text names a voice: the last voice of the text before
    # the voice that a name in a text means; None: the model's own of that name
    named_voice: Callable[[str], Any] | None = None

    def reporting(self, sound: Iterator[np.ndarray], phase: str, done: int, total: int) -> Iterator[np.ndarray]:
        """Yield a sound, then report progress."""
        yield from sound
        self.progress(phase, done, total, "")

    def passages(self, request: SpeechRequest, arpabet: bool = False) -> list[Passage]:
        """``read_passages`` of the request's text. Raises UserError: as well when it costs more than it may, or has
        phonemes in braces without ``arpabet``.
        """
        ssml = is_ssml(request.text) if request.ssml is None else request.ssml
        text = request.text if ssml else without_markdown(request.text, request.markdown)
        quotations: Sequence[Quotation] = ()
        if (cast := request.roles) and cast.attributed and cast.voices:
            if ssml:
                raise UserError("cast has no effect on quotations in SSML: use <voice>, or leave it out", "cast")
            quotations = cast.quotations_in(text)
        passages = read_passages(text, request.lexicon, ssml, False, self.voice, quotations)
        found = None if arpabet else next((match for each in passages if (match := ARPABET.search(each.text))), None)
        if found:
            raise UserError(
                f"{found[0]}: this model takes no phonemes in braces, only FastSpeech does: write the word "
                "or a respelling"
            )
        self.usage.add(request.text, passages)
        return passages
