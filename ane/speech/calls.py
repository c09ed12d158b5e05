"""Let methods of ``Speaker`` take the fields of a request as arguments, so that type checkers know every argument."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, Protocol, TypeVar, get_type_hints

from pydantic import BeforeValidator, PlainValidator, SkipValidation

from ane.speech.options import SpeechOptions
from ane.speech.request import Progress, SpeechContext, SpeechRequest, as_lexicon, as_voice, report_nothing
from ane.speech.settings import SpeechSettings
from ane.system.checked import validated
from ane.system.errors import UserError
from ane.system.timeline import Timeline
from ane.text import Lexicon
from ane.voices import Voice

VoiceField = Annotated[str | Path | Voice | None, PlainValidator(as_voice)]
LexiconField = Annotated[Lexicon | Mapping[str, str] | None, BeforeValidator(as_lexicon)]
SettingsField = Annotated[SpeechOptions | SpeechSettings | None, SkipValidation]  # ``chosen_settings`` checks them
Fields = ParamSpec("Fields")
Result = TypeVar("Result")
Owner = TypeVar("Owner")
FirstArgument = TypeVar("FirstArgument")
Request = TypeVar("Request", bound=SpeechRequest)


class Texts(Protocol):
    """A list, tuple or other collection of texts. Type checkers know that a single text is not one."""

    def __contains__(self, value: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...


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
            refuse_settings(fields)
            return method(self, make(*args, **fields))

        return documented(call, method, make)

    return decorate


def takes_texts_and_fields(
    make: Callable[Concatenate[str, Fields], Request],
) -> Callable[
    [Callable[[Owner, FirstArgument, Request], Result]], Callable[Concatenate[Owner, FirstArgument, Fields], Result]
]:
    """Decorate a method that takes texts and a request. Callers pass the texts, then the request's other fields."""

    def decorate(
        method: Callable[[Owner, FirstArgument, Request], Result],
    ) -> Callable[Concatenate[Owner, FirstArgument, Fields], Result]:
        @wraps(method)
        def call(self: Owner, texts: FirstArgument, *args: Fields.args, **fields: Fields.kwargs) -> Result:
            refuse_settings(fields)
            return method(self, texts, make("", *args, **fields))

        return documented(call, method, make)

    return decorate


def refuse_settings(fields: Mapping[str, object]) -> None:
    """Raise InvalidValueError if an argument of a call is a setting, which ``ane.Settings`` takes."""
    if name := next((name for name in fields if name in SpeechOptions.__annotations__), None):
        raise UserError(f"{name} is a setting: pass settings=ane.Settings({name}=…)", name)


def documented(call: Callable[Fields, Result], method: Callable[..., Result], make: type) -> Callable[Fields, Result]:
    """Give a decorated method the signature that its callers see, which has the fields in place of the request.

    If the docstring of the method has the line "{fields}", the descriptions of the fields replace this line.
    """
    own, types = inspect.signature(method), get_type_hints(make)
    before = [*own.parameters.values()][:-1]
    fields = [field.replace(annotation=types[name]) for name, field in inspect.signature(make).parameters.items()]
    call.__signature__ = own.replace(parameters=[*before, *fields[len(before) - 1 :]])  # type: ignore[attr-defined]
    parts = [inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2] for base in make.__mro__[-2::-1]]
    described = "\n".join(part.rstrip() for part in parts if part).strip()
    call.__doc__ = inspect.cleandoc(method.__doc__ or "").replace("{fields}", described)
    return call
