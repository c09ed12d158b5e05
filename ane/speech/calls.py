"""Methods whose arguments are the fields of a request, so that Python, mypy and pyright know each of them."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from ane.speech.request import Progress, SpeechContext, SpeechRequest, report_nothing
from ane.system.checked import checked
from ane.system.timeline import Timeline

Fields = ParamSpec("Fields")
Result = TypeVar("Result")
Owner = TypeVar("Owner")
Texts = TypeVar("Texts")
Request = TypeVar("Request", bound=SpeechRequest)


@checked
class SpeechCall(SpeechRequest):
    """A request as a program makes it, with what it wants to know of the work.

    Attributes:
        progress: Called with (phase, done, total, note) during the work.
        timeline: Records when each phase runs. With None, a new one does.
    """

    progress: Progress = report_nothing
    timeline: Timeline | None = None

    def context(self, batched: bool = False) -> SpeechContext:
        """Return the context of this call's work."""
        return SpeechContext(self.progress, self.timeline or Timeline(), batched=batched)


def takes_fields(make: Callable[Fields, Request]) -> Callable[
        [Callable[[Owner, Request], Result]], Callable[Concatenate[Owner, Fields], Result]]:
    """Let a method of a request take the request's fields as its arguments."""
    def decorate(method: Callable[[Owner, Request], Result]) -> Callable[Concatenate[Owner, Fields], Result]:
        @wraps(method)
        def call(self: Owner, *args: Fields.args, **fields: Fields.kwargs) -> Result:
            return method(self, make(*args, **fields))

        return call

    return decorate


def takes_texts_and_fields(make: Callable[Concatenate[str, Fields], Request]) -> Callable[
        [Callable[[Owner, Texts, Request], Result]], Callable[Concatenate[Owner, Texts, Fields], Result]]:
    """The same for a method that takes other texts in place of the request's."""
    def decorate(method: Callable[[Owner, Texts, Request], Result]
                 ) -> Callable[Concatenate[Owner, Texts, Fields], Result]:
        @wraps(method)
        def call(self: Owner, texts: Texts, *args: Fields.args, **fields: Fields.kwargs) -> Result:
            return method(self, texts, make("", *args, **fields))

        return call

    return decorate
