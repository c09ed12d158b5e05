"""Show the fields of a request as the arguments of the methods that take them, on the page of the Python API.

mkdocs loads this extension of griffe. Without it, griffe would show the parameters in the source, such as ``call``.
"""

import inspect
import re
from typing import Any

import griffe

from ane.speech.speaker import Speaker

MODULE = re.compile(r"\b[a-z_]\w*\.(?=\w)")  # part of a module's name before the name of a class


class FieldsOfRequests(griffe.Extension):
    """Replace the parameters and the docstrings of decorated methods by those that Python's ``help`` shows."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        inherited = pkg["speech.async_speech.AsyncSpeech"].functions
        for name, method in {**pkg["speech.speaker.Speaker"].functions, **inherited}.items():
            if any("takes_" in str(decorator.value) for decorator in method.decorators):
                shown = inspect.signature(getattr(Speaker, name)).parameters.values()
                method.parameters = griffe.Parameters(*map(parameter, shown))
                method.docstring.value = inspect.getdoc(getattr(Speaker, name))


def parameter(shown: inspect.Parameter) -> griffe.Parameter:
    """Convert a parameter of a signature."""
    annotation, default = inspect.formatannotation(shown.annotation), getattr(shown.default, "__name__", shown.default)
    return griffe.Parameter(
        shown.name,
        annotation=None if shown.annotation is shown.empty else MODULE.sub("", annotation),
        kind=griffe.ParameterKind(shown.kind.description),
        default=None if shown.default is shown.empty else str(default),
    )
