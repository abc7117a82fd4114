"""The definition of a route: its method, path, fields and handler.

The checks of requests and the OpenAPI document are derived from it, so no route lacks them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire._runtime.names.suggest import did_you_mean
from quire._runtime.units import parse_duration, parse_size
from quire.errors import UsageError

FieldType = Literal["integer", "bytes", "seconds", "boolean", "string", "strings", "object"]
"""The type of a field. `bytes` and `seconds` are integers, which a request may also give as text
with a unit: "64MiB", "15m"."""
INT64_MAX = 2**63 - 1
TEXT_MAX = 1_024
"""The largest number of characters of a text in a request."""
TEXTS_MAX = 100
"""The largest number of texts in a list in a request."""


@dataclass(frozen=True, slots=True)
class Field:
    """A named value in a request: in the path, in the query, or in the JSON body.

    `minimum` and `maximum` apply to numbers, and `choices` to texts. Without choices, any text is
    allowed.
    """

    name: str
    type: FieldType
    help: str
    required: bool = False
    minimum: int = 0
    maximum: int = INT64_MAX
    choices: tuple[str, ...] = ()
    secret: bool = False
    """Whether the event log must not contain the value."""

    def parse(self, value: Any) -> Any:
        """Return the value as the field's type.

        Numbers and booleans may also be texts, such as "7" or "true", because a query contains only
        texts, and Apache's clients send "true" in bodies. Raises UsageError for a value that the
        field does not allow.
        """
        parsers: dict[FieldType, Callable[[Any], Any]] = {
            "integer": self._integer,
            "bytes": self._quantity,
            "seconds": self._quantity,
            "boolean": self._boolean,
            "string": self._string,
            "strings": self._strings,
            "object": self._object,
        }
        return parsers[self.type](value)

    def _integer(self, value: Any) -> int:
        text = value if isinstance(value, str) else ""
        if re.fullmatch(r"-?[0-9]{1,19}", text):
            value = int(text)
        if type(value) is not int or not self.minimum <= value <= self.maximum:
            raise self._wrong(value, f"an integer from {self.minimum} to {self.maximum}")
        return value

    def _quantity(self, value: Any) -> int:
        if not isinstance(value, str):
            return self._integer(value)
        try:
            number = (
                parse_size(value, least=-INT64_MAX)
                if self.type == "bytes"
                else parse_duration(value, least=-INT64_MAX)
            )
        except ValueError as error:
            raise UsageError(f"the field {self.name} cannot be used: {error}") from None
        return self._integer(int(number) if number == int(number) else value)

    def _boolean(self, value: Any) -> bool:
        value = (
            {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
        )
        if not isinstance(value, bool):
            raise self._wrong(value, "true or false")
        return value

    def _string(self, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX:
            raise self._wrong(value, f"a text of 1 to {TEXT_MAX} characters")
        if not is_utf8(value):
            raise self._wrong(value, "a text without parts of characters (surrogates)")
        if self.choices and value not in self.choices:
            raise self._wrong(value, f"one of {', '.join(self.choices)}")
        return value

    def _strings(self, value: Any) -> list[str]:
        if not isinstance(value, list) or not 0 < len(value) <= TEXTS_MAX:
            raise self._wrong(value, f"a list of 1 to {TEXTS_MAX} texts")
        return [self._string(one) for one in value]

    def _object(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(value, "an object")
        return value

    def _wrong(self, value: Any, wanted: str) -> UsageError:
        return UsageError(f"the field {self.name} must be {wanted}, not {str(value)[:80]!r}")


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can represent the text. JSON can name parts of characters alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose fields were checked: those of its path, its query and its body.

    A field that the request does not give is not in the mapping.
    """

    path: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is not JSON."""

    text: str
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that are added to those of every answer, or replace them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status other than 200."""

    status: int
    value: Any


Handler = Callable[[Call], Awaitable[Any]]
"""A function that answers a request with a JSON value, a `Text`, or a `Reply` that contains one of
them."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path of the API, with its fields and its handler."""

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    """The path, with the names of its fields in braces."""
    summary: str
    handler: Handler
    fields: tuple[Field, ...] = ()
    """The fields in the path."""
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] = ()
    example: Any = None
    """An example of an answer, for the documentation."""
    open: bool = False
    """Whether the route answers without the token. Only health checks and the dashboard's files do:
    they reveal nothing about the cluster, and only the health of the process."""
    documented: bool = True
    """Whether the OpenAPI document contains the route."""
    payloads: bool = False
    """Whether the answer contains what users have stored. Such a route always needs the token, and
    `HttpOptions.payloads` switches all of them off. It changes nothing, whatever its method is."""

    @property
    def changes(self) -> bool:
        return self.method != "GET" and not self.payloads

    def check(
        self, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: Mapping[str, Any]
    ) -> Call:
        """Return the request with its fields parsed.

        Raises UsageError for a field that is unknown, missing, given twice or not allowed.
        """
        names = [name for name, _ in query]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"the field {twice} of the query is given twice: give it once")
        return Call(
            _parsed(self.fields, path), _parsed(self.query, dict(query)), _parsed(self.body, body)
        )


def _parsed(fields: Sequence[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    known = {one.name: one for one in fields}
    for name in given:
        if name not in known:
            there = f"The fields are: {', '.join(known) or 'none'}"
            raise UsageError(
                f"this request has no field {name[:80]!r}", remedy=did_you_mean(name, known, there)
            )
    for one in fields:
        if one.required and one.name not in given:
            raise UsageError(
                f"the field {one.name} of the request is missing",
                remedy=f"Give {one.name}: {one.help}",
            )
    return {name: known[name].parse(value) for name, value in given.items()}


@dataclass(slots=True)
class Api:
    """The routes of one server. No two of them may have the same method and path."""

    title: str
    routes: list[Route] = field(default_factory=list)

    def add(self, routes: Sequence[Route]) -> None:
        taken = {(one.method, one.path) for one in self.routes}
        for route in routes:
            assert (route.method, route.path) not in taken, route
            names = set(re.findall(r"{(\w+)}", route.path))
            assert names == {one.name for one in route.fields}, route
            assert route.method != "GET" or not route.body, route
            self.routes.append(route)
