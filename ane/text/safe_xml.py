"""A parser for XML of unknown origin: no document type, hence no entities of its own, and nothing external."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from xml.parsers import expat

from ane.system.errors import UserError

MAX_DEPTH = 100


class XmlHandler(ABC):
    """Receives a document's elements in order.

    Attributes:
        where: the document in error messages. line: the line that is being read.
    """

    where: str
    line = 0

    @abstractmethod
    def start(self, name: str, attributes: Mapping[str, str]) -> None: ...

    @abstractmethod
    def end(self, name: str) -> None: ...

    @abstractmethod
    def text(self, text: str) -> None: ...

    def error(self, fault: str) -> UserError:
        return UserError(f"{self.where}, line {self.line}: {fault}")


def parse_xml(document: str, handler: XmlHandler) -> None:
    """Call the handler for each part of a document.

    Raises:
        UserError: it is not well-formed, declares a document type, or is nested deeper than ``MAX_DEPTH``.
    """
    parser = expat.ParserCreate("utf-8")        # the text is decoded: an encoding that it declares is out of date
    parser.buffer_text = True
    depth = 0

    def at_line(line: int) -> None:
        handler.line = line

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        at_line(parser.CurrentLineNumber)
        if depth > MAX_DEPTH:
            raise handler.error(f"elements are nested more than {MAX_DEPTH} deep")
        handler.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        at_line(parser.CurrentLineNumber)
        handler.end(name)

    def text(data: str) -> None:
        at_line(max(1, parser.CurrentLineNumber - data.count("\n")))
        handler.text(data)

    def refuse_doctype(*_: object) -> None:
        at_line(parser.CurrentLineNumber)
        raise handler.error("a document type (<!DOCTYPE …>) is not accepted: leave it out")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartDoctypeDeclHandler = refuse_doctype
    try:
        parser.Parse(document.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        at_line(error.lineno)
        raise handler.error(f"not well-formed XML ({expat.ErrorString(error.code)}): correct it") from error
