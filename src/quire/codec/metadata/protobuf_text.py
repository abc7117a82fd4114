"""Protobuf's text format, as far as BookKeeper's metadata needs it (metadata spec, 2.3).

Written: one field per line, `name: value`; nested messages `name {` ... `}`, indented by two
blanks. Read: everything that Java's parser takes, which is more than anyone writes: any order, one
line, no blank after the colon, `#` comments, either kind of quotes, `< >` for braces, a colon
before a brace, hexadecimal and octal numbers, adjacent literals, lists in brackets, and the last
of several values of a field that is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_DEPTH_MAX = 16
"""Nesting allowed. The deepest message of ours has two levels."""

_TOKEN = re.compile(
    r"""
    (?P<space>   [\s]+ | \#[^\n]* )
  | (?P<name>    [A-Za-z_][A-Za-z0-9_]* )
  | (?P<number>  -?\s*(?: 0[xX][0-9A-Fa-f]+ | [0-9]+ ) (?![A-Za-z0-9_.]) )
  | (?P<string>  "(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*' )
  | (?P<mark>    [{}<>:;,\[\]] )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?: (?P<octal>[0-7]{1,3}) | [xX](?P<hex>[0-9A-Fa-f]{1,2}) | (?P<plain>.) )"
    r"| (?P<text>[^\\]+)",
    re.VERBOSE | re.DOTALL,
)
_PLAIN_ESCAPES = {
    "a": 7,
    "b": 8,
    "f": 12,
    "n": 10,
    "r": 13,
    "t": 9,
    "v": 11,
    "\\": 92,
    "'": 39,
    '"': 34,
    "?": 63,
}
_ESCAPED = {code: f"\\{letter}" for letter, code in _PLAIN_ESCAPES.items() if letter != "?"}
_CLOSER = {"{": "}", "<": ">"}


class TextError(ValueError):
    """The text is not a message of this form."""


class Name(str):
    """A bare word: the name of an enum's value."""

    __slots__ = ()


def quote(data: bytes) -> str:
    """`data` between double quotes; bytes outside of printable ASCII as three octal digits."""
    shown = (_ESCAPED.get(b) or (chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in data)
    return '"' + "".join(shown) + '"'


class TextMessage:
    """What was between a pair of braces: fields in their order, with access by name and type."""

    def __init__(self, fields: Sequence[tuple[str, int | bytes | Name | TextMessage]]) -> None:
        self._fields = fields

    def only(self, names: Iterable[str]) -> None:
        """`TextError` if there is a field of another name."""
        allowed = frozenset(names)
        for name, _ in self._fields:
            if name not in allowed:
                raise TextError(f"unknown field {name!r}")

    def has(self, name: str) -> bool:
        return any(name == other for other, _ in self._fields)

    def integer(self, name: str) -> int | None:
        found: int | None = None
        for value in self._values(name):
            if not isinstance(value, int):
                raise TextError(f"field {name!r} is not a number")
            found = value
        return found

    def data(self, name: str) -> bytes | None:
        values = self.data_list(name)
        return values[-1] if values else None

    def data_list(self, name: str) -> list[bytes]:
        found = []
        for value in self._values(name):
            if not isinstance(value, bytes):
                raise TextError(f"field {name!r} is not a string")
            found.append(value)
        return found

    def text(self, name: str) -> str | None:
        values = self.text_list(name)
        return values[-1] if values else None

    def text_list(self, name: str) -> list[str]:
        return [value.decode() for value in self.data_list(name)]

    def word(self, name: str) -> int | str | None:
        """The last value of an enum field: its number or its name."""
        found: int | str | None = None
        for value in self._values(name):
            if not isinstance(value, int | Name):
                raise TextError(f"field {name!r} is not an enum value")
            found = value
        return found

    def messages(self, name: str) -> list[TextMessage]:
        found = []
        for value in self._values(name):
            if not isinstance(value, TextMessage):
                raise TextError(f"field {name!r} is not a message")
            found.append(value)
        return found

    def _values(self, name: str) -> list[int | bytes | Name | TextMessage]:
        return [value for other, value in self._fields if other == name]


def parse_text(data: bytes) -> TextMessage:
    """`TextError` or `UnicodeDecodeError` (both are `ValueError`) if it is no message."""
    return _Parser(_tokens(data.decode())).message(None, 0)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if match is None:
            line = text.count("\n", 0, offset) + 1
            raise TextError(f"line {line} cannot be understood")
        offset = match.end()
        kind = match.lastgroup
        assert kind is not None
        if kind != "space":
            tokens.append((kind, match.group()))
    return tokens


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    def message(self, closer: str | None, depth: int) -> TextMessage:
        if depth > _DEPTH_MAX:
            raise TextError("messages are nested too deeply")
        fields: list[tuple[str, int | bytes | Name | TextMessage]] = []
        while True:
            kind, token = self._next()
            if kind == "end":
                if closer is not None:
                    raise TextError(f"{closer!r} is missing at the end")
                return TextMessage(fields)
            if kind == "mark" and token == closer:
                return TextMessage(fields)
            if kind != "name":
                raise TextError(f"a field name was expected before {token!r}")
            colon = self._skip(":")
            if self._skip("["):
                fields.extend((token, value) for value in self._list(depth))
            else:
                fields.append((token, self._value(token, colon, depth)))
            self._skip(";") or self._skip(",")

    def _list(self, depth: int) -> list[int | bytes | Name | TextMessage]:
        values: list[int | bytes | Name | TextMessage] = []
        while not self._skip("]"):
            if values and not self._skip(","):
                raise TextError("',' or ']' was expected in a list")
            values.append(self._value("list", True, depth))
        return values

    def _value(self, name: str, colon: bool, depth: int) -> int | bytes | Name | TextMessage:
        kind, token = self._next()
        if kind == "mark" and token in _CLOSER:
            return self.message(_CLOSER[token], depth + 1)
        if not colon:
            raise TextError(f"':' is missing after {name!r}")
        if kind == "string":
            data = _unescape(token)
            while self._peek()[0] == "string":
                data += _unescape(self._next()[1])
            return data
        if kind == "number":
            return _number(token)
        if kind == "name":
            return Name(token)
        raise TextError(f"field {name!r} has no value")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _skip(self, mark: str) -> bool:
        if self._peek() == ("mark", mark):
            self._at += 1
            return True
        return False


def _number(token: str) -> int:
    negative = token.startswith("-")
    digits = token.lstrip("-").strip()
    if digits[:2] in ("0x", "0X"):
        value = int(digits[2:], 16)
    elif digits.startswith("0") and len(digits) > 1:
        if not set(digits) <= set("01234567"):
            raise TextError(f"{digits!r} is not an octal number")
        value = int(digits, 8)
    else:
        value = int(digits)
    value = -value if negative else value
    if not -(1 << 63) <= value < 1 << 63:
        raise TextError(f"{digits!r} does not fit into 64 bits")
    return value


def _unescape(literal: str) -> bytes:
    out = bytearray()
    for match in _ESCAPE.finditer(literal[1:-1]):
        if (text := match["text"]) is not None:
            out += text.encode()
        elif (octal := match["octal"]) is not None:
            out.append(int(octal, 8) & 0xFF)
        elif (digits := match["hex"]) is not None:
            out.append(int(digits, 16))
        elif match["plain"] in _PLAIN_ESCAPES:
            out.append(_PLAIN_ESCAPES[match["plain"]])
        else:
            raise TextError(f"unknown escape \\{match['plain']}")
    return bytes(out)
