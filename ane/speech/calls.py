"""Let methods of ``Speaker`` take the fields of a request as arguments, so that type checkers know every argument."""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

from pydantic import BeforeValidator

from ane.speech.options import SpeechOptions
from ane.speech.request import Progress, SpeechContext, SpeechRequest, as_lexicon, as_voice, report_nothing
from ane.speech.settings import SpeechSettings
from ane.system.checked import validated
from ane.system.timeline import Timeline
from ane.text import Lexicon

if TYPE_CHECKING:  # type checkers read these types. At run time, the validators below check the values instead
    from ane.voices import Voice

    VoiceField = str | Path | Voice | None
    LexiconField = Lexicon | Mapping[str, str] | None
    SettingsField = SpeechOptions | SpeechSettings | None
else:
    VoiceField = Annotated[Any, BeforeValidator(as_voice)]
    LexiconField = Annotated[Lexicon | None, BeforeValidator(as_lexicon)]
    SettingsField = Any

Fields = ParamSpec("Fields")
Result = TypeVar("Result")
Owner = TypeVar("Owner")
Texts = TypeVar("Texts")
Request = TypeVar("Request", bound=SpeechRequest)


@validated
class SpeechCall(SpeechRequest):
    """A request from a Python program, with two objects that let the program watch the work.

    Attributes:
        progress: Function that is called with (phase, done, total, note) during the work.
        timeline: Timeline that records when each phase runs. ``None`` means a new timeline.
    """

    voice: VoiceField = None
    settings: SettingsField = None
    lexicon: LexiconField = None  # type: ignore[assignment]  # a mapping becomes a lexicon
    progress: Progress = report_nothing
    timeline: Timeline | None = None

    def context(self, batched: bool = False) -> SpeechContext:
        """Create the context of the work on this call. ``SpeechContext`` explains ``batched``."""
        return SpeechContext(self.progress, self.timeline or Timeline(), batched=batched)


def takes_fields(
    make: Callable[Fields, Request],
) -> Callable[[Callable[[Owner, Request], Result]], Callable[Concatenate[Owner, Fields], Result]]:
    """Decorate a method that takes a request. Callers of the decorated method pass the request's fields instead."""

    def decorate(method: Callable[[Owner, Request], Result]) -> Callable[Concatenate[Owner, Fields], Result]:
        @wraps(method)
        def call(self: Owner, *args: Fields.args, **fields: Fields.kwargs) -> Result:
            return method(self, make(*args, **fields))

        return call

    return decorate


def takes_texts_and_fields(
    make: Callable[Concatenate[str, Fields], Request],
) -> Callable[[Callable[[Owner, Texts, Request], Result]], Callable[Concatenate[Owner, Texts, Fields], Result]]:
    """Decorate a method that takes texts and a request. Callers pass the texts, then the request's other fields."""

    def decorate(
        method: Callable[[Owner, Texts, Request], Result],
    ) -> Callable[Concatenate[Owner, Texts, Fields], Result]:
        @wraps(method)
        def call(self: Owner, texts: Texts, *args: Fields.args, **fields: Fields.kwargs) -> Result:
            return method(self, texts, make("", *args, **fields))

        return call

    return decorate
