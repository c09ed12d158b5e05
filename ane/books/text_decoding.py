"""Bytes of a document as text."""

import codecs

from ane.system.errors import UserError


def decoded(data: bytes, encoding: str, subject: str, advice: str) -> str:
    """Text in UTF-16 if it begins with its mark, else in ``encoding``, with or without the mark of UTF-8.

    Raises:
        UserError: it is in another encoding, or has NUL characters. ``subject`` begins the message, ``advice`` ends it.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif data.startswith(codecs.BOM_UTF8) or encoding in ("utf-8", "us-ascii", "ascii"):
        encoding = "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{subject} is not text in {encoding.removesuffix('-sig').upper()} (byte {error.start}): "
                        f"{advice}") from error
    if "\x00" in text:
        raise UserError(f"{subject} is no text: it holds NUL characters")
    return text
