"""Protobuf's text format, in which BookKeeper writes metadata.

`write_text` writes one field in each line, `name: value`, nested messages in braces, and bytes
outside of printable ASCII as octal escapes. `parse_text` reads everything that Java's parser
accepts, which is more than any program writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

ESCAPES = re.compile(rb"\\(?:([4-7][0-7]{2}|[^0-7abfnrtvxuU\\'\"]|\Z)|.)", re.DOTALL)
"""The expression that matches every escape sequence of a text. Its group matches only if no parser
accepts the escape sequence."""


class TextError(ValueError):
    """The error for a text that is not a message of this form."""


class UnknownFieldError(TextError):
    """The error for a text that is a message with a field that this version does not know."""


def write_text(message: Message) -> bytes:
    """Return the message as text. Each line ends with a newline."""
    # Imported here, because most processes only read metadata in its binary form.
    from google.protobuf import text_format

    return text_format.MessageToBytes(message, as_utf8=False)


def parse_text(
    data: bytes, message: M, *, allow_unknown: bool = False, required: Sequence[str] = ()
) -> M:
    """Fill `message` from a text, and return it.

    If a field that is not repeated occurs several times, the last value counts. A field with an
    unknown name is an error unless `allow_unknown` is set.

    Raises:
        UnknownFieldError: The text has a field that the message does not have. It has all
            `required` fields, so none of them was merely misspelt.
        TextError: The text is not a message of this form.
    """
    from google.protobuf import text_format

    # google.protobuf only warns about a wrong escape, and stores it as it is.
    for found in ESCAPES.finditer(data):
        if found[1] is not None:
            raise TextError(f"its text contains {found[0]!r}, which is not a valid escape sequence")
    try:
        return text_format.Merge(data.decode(), message, allow_unknown_field=allow_unknown)
    except (text_format.ParseError, UnicodeError, RecursionError) as error:
        if not allow_unknown and _parses(data, type(message)(), required):
            raise UnknownFieldError(str(error)) from None
        raise TextError(str(error)) from None


def _parses(data: bytes, message: Message, required: Sequence[str]) -> bool:
    """Return whether a text is a whole message if its unknown fields are ignored."""
    try:
        parse_text(data, message, allow_unknown=True)
    except TextError:
        return False
    return all(message.HasField(name) for name in required)
