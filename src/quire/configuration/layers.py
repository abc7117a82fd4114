"""The configuration of a process: defaults, one TOML file, the environment, and options.

Each source is a `Layer`. `merged` makes a `Configuration` of several: a later layer overrides an
earlier one, key by key. A mistake in a layer becomes a problem, which is one line that says where
the mistake is. For an unknown key the line suggests the most similar key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from quire._runtime.names.suggest import nearest
from quire.config import BookieConfig, ClientConfig
from quire.configuration.fields import (
    ENVIRONMENT_PREFIX,
    IN_MILLISECONDS,
    TABLES,
    BookieProcessConfig,
    ConfigKey,
    HttpServerConfig,
    HttpSideConfig,
    LogConfig,
    environment_name,
    inner_tables,
    keys,
)
from quire.configuration.values import value_of
from quire.replication.autorecovery.settings import AutorecoverySettings

T = TypeVar("T")

FILE_BYTES_MAX = 1024 * 1024
"""The largest configuration file that is read. A larger file must be something else."""
DEFAULT = "default"
_KEY_LINE = re.compile(r"""\s*([A-Za-z0-9_."'-]+)\s*=""")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
_TWICE = ("Cannot overwrite", "Cannot declare", "Duplicate", "Cannot mutate", "Cannot redefine")
"""The beginnings of the parser's messages about a key or a table that is set twice."""
_JAVA_PROPERTY = re.compile(r"\s*[a-z]+(?:[A-Z][a-z0-9]*)+\s*=")
"""The form of a line of Apache's bk_server.conf."""
_OF_APACHE = re.compile(r"[a-z]+(?:[A-Z][a-z0-9]*)+")
TRANSLATE = "To translate Apache's bk_server.conf, use `quire bookie conf --toml FILE`"
_TABLE_LINE = re.compile(r"""\s*\[([^\[\]]+)\]""")


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value from one layer, before it is checked."""

    value: object
    """The value in the form of its source: a TOML value, or text."""
    origin: str
    """The place of the value, for people: `/etc/quire/quire.toml:12`, `QUIRE_BOOKIE_PORT`,
    `--set port=1`."""


@dataclass(slots=True)
class Layer:
    """One source of configuration: what it sets, and what is wrong with it."""

    given: dict[str, GivenValue] = field(default_factory=dict)
    """The values by the name of the key."""
    tables: dict[str, str] = field(default_factory=dict)
    """The places of the inner tables that are present, even if empty, by name."""
    needed: dict[str, str] = field(default_factory=dict)
    """The problem to report for each key that must be set, by the key's name. It is reported only
    if no layer sets the key."""
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """One warning for each use of a former name of a key."""
    _spelled: dict[str, str] = field(default_factory=dict)
    """The name under which each key was given: its own or a former one."""

    def give(self, name: str, value: object, origin: str) -> None:
        """Set the key `name` to a value. The name may be a former name of the key."""
        present = IN_MILLISECONDS.get(name, name)
        if self._spelled.setdefault(present, name) != name:
            self.problems.append(
                f"{origin}: {name} and {self._spelled[present]} are names of the same key; "
                f"give {present} only"
            )
        if present != name:
            self.warnings.append(f"{origin}: {name} is deprecated: use {present}, in seconds")
            value = _in_seconds(value)
        self.given[present] = GivenValue(value, origin)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The effective value of every key, and the place that set it."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    tables: Mapping[str, str]
    """The places of the optional inner tables that are present, by name."""
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def metadata(self) -> str:
        return str(self.values["metadata"])

    def bookie(self) -> BookieConfig:
        return self._make(BookieConfig, "bookie.")

    def bookie_process(self) -> BookieProcessConfig:
        return self._make(BookieProcessConfig, "bookie.")

    def http(self) -> HttpServerConfig:
        return self._make(HttpServerConfig, "http.")

    def http_side(self, table: str) -> HttpSideConfig:
        return self._make(HttpSideConfig, f"{table}.")

    def log(self) -> LogConfig:
        return self._make(LogConfig, "log.")

    def client(self) -> ClientConfig:
        return self._make(ClientConfig, "client.")

    def autorecovery(self) -> AutorecoverySettings:
        return self._make(AutorecoverySettings, "autorecovery.")

    def _make(self, kind: type[T], prefix: str) -> T:
        arguments: dict[str, Any] = {}
        for item in fields(kind):  # type: ignore[arg-type]
            name = prefix + item.name
            table = inner_tables().get(name)
            if table is None:
                arguments[item.name] = self.values[name]
            elif not table.optional or name in self.tables:
                arguments[item.name] = self._make(table.kind, f"{name}.")
        return kind(**arguments)


def _in_seconds(milliseconds: object) -> object:
    """Return the same time as a number of seconds. Text with a unit stays as it is."""
    if isinstance(milliseconds, str):
        try:
            return float(milliseconds) / 1000
        except ValueError:
            return milliseconds
    if isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool):
        return milliseconds / 1000
    return milliseconds


# -- layers -----------------------------------------------------------------------------------


def file_layer(path: Path) -> Layer:
    """Return the layer of a TOML file. Raises `OSError` if the file cannot be read."""
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        return Layer(problems=[f"{path}: the file is larger than {FILE_BYTES_MAX} bytes"])
    try:
        text = raw.decode("utf-8-sig")  # Editors on Windows begin a file with a BOM.
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Layer(problems=[f"{path}:{line}: this is not UTF-8 text: save the file as UTF-8"])
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Layer(problems=[f"{path}{_not_toml(str(error), text)}"])
    return toml_layer(document, str(path), _lines_of(text))


def _not_toml(said: str, text: str) -> str:
    """Return the place and the problem of a text that is not TOML, from the parser's message."""
    place = _AT_LINE.search(said)
    if place is None:
        return f": {said}"
    number = int(place[1])
    what, line = said[: place.start()].rstrip(), text.splitlines()[number - 1 : number]
    value = line[0].partition("=")[2].strip() if line else ""
    if what.startswith(_TWICE):
        return f":{number}: this sets a key or a table that was set before: remove one of them"
    if _JAVA_PROPERTY.match(line[0] if line else ""):
        return f":{number}: this is not TOML ({what}). {TRANSLATE}"
    if value and value[0] not in "\"'[{":
        return f":{number}: {value!r} is not a value of TOML ({what}): put text in quotes"
    return f":{number}: this is not TOML: {what}"


def toml_layer(document: Mapping[str, object], source: str, lines: Mapping[str, int]) -> Layer:
    """Return the layer of a parsed TOML document.

    Args:
        document: The document.
        source: The path of the file, for messages.
        lines: The line of each key and table, for messages.
    """
    layer = Layer()
    _take_table(layer, "", document, source, lines)
    return layer


def _take_table(
    layer: Layer, prefix: str, table: Mapping[str, object], source: str, lines: Mapping[str, int]
) -> None:
    for last, value in table.items():
        name = prefix + last
        where = _place(source, name, lines)
        if name in keys() or name in IN_MILLISECONDS:
            layer.give(name, value, where)
        elif name not in inner_tables() and (name not in TABLES or not name):
            layer.problems.append(f"{where}: {unknown(prefix, last)}")
        elif not isinstance(value, dict):
            layer.problems.append(f"{where}: {name} is a table: write [{name}]")
        else:
            layer.tables[name] = where
            _take_table(layer, f"{name}.", value, source, lines)


def _lines_of(text: str) -> dict[str, int]:
    """Return the line number of each key and table that can be found without parsing TOML
    completely."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE_LINE.match(line):
            table = re.sub(r"""[\s"']""", "", header[1])
            found.setdefault(table, number)
        elif key := _KEY_LINE.match(line):
            name = re.sub(r"""["']""", "", key[1])
            found.setdefault(f"{table}.{name}" if table else name, number)
    return found


def _place(source: str, name: str, lines: Mapping[str, int]) -> str:
    while name:
        if name in lines:
            return f"{source}:{lines[name]}"
        name = name.rpartition(".")[0]
    return source


def environment_layer(environment: Mapping[str, str]) -> Layer:
    """Return the layer of environment variables. An empty variable counts as not set."""
    layer = Layer()
    known = {environment_name(key): key for key in (*keys(), *IN_MILLISECONDS)}
    ours = tuple(f"{ENVIRONMENT_PREFIX}{table.upper()}_" for table in TABLES if table)
    for name, text in environment.items():
        if not text:
            continue
        if name in known:
            layer.give(known[name], text, name)
        elif name.startswith(ours):
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else "`quire config show` lists all keys"
            layer.problems.append(f"{name}: this variable names no key of Quire; {hint}")
    return layer


def options_layer(given: Mapping[str, tuple[object, str]]) -> Layer:
    """Return the layer of command-line options, given by key as (value, option).

    None and () mean that the option was not given.
    """
    return Layer(
        {
            key: GivenValue(value, option)
            for key, (value, option) in given.items()
            if value not in (None, ())
        }
    )


def unknown(prefix: str, last: str) -> str:
    """Return the problem "there is no such key", with the key that was probably meant."""
    table = prefix.removesuffix(".")
    everything = [*keys(), *inner_tables(), *(name for name in TABLES if name)]
    beside = [
        name.removeprefix(prefix)
        for name in everything
        if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    ]
    alike = [name for name in beside if name.removeprefix("http_") == last.removeprefix("http_")]
    elsewhere = [name for name in everything if name.rpartition(".")[2] == last]
    what = f"[{table}] has no key {last!r}" if table else f"there is no key or table {last!r}"
    if table and alike:  # The keys of HTTP have the prefix in all tables but [http].
        return f"{what}; did you mean {' or '.join(alike)}?"
    if elsewhere:
        return f"{what}; did you mean {' or '.join(elsewhere)}?"
    if _OF_APACHE.fullmatch(last):
        return f"{what}, and no key of Quire has such a name. {TRANSLATE}"
    near = nearest(last, beside) or nearest(prefix + last, everything)
    return f"{what}; did you mean {near}?" if near else f"{what}; it has {', '.join(beside)}"


# -- all together -----------------------------------------------------------------------------


def merged(layers: Sequence[Layer]) -> Configuration:
    """Return the configuration from these layers. Later layers override earlier ones."""
    given: dict[str, GivenValue] = {}
    tables: dict[str, str] = {}
    problems: list[str] = []
    warnings = [warning for layer in layers for warning in layer.warnings]
    for layer in layers:
        given |= layer.given
        tables |= layer.tables
        problems += layer.problems
    problems += [
        problem for layer in layers for name, problem in layer.needed.items() if name not in given
    ]
    for name, one in given.items():
        table = name.rpartition(".")[0]
        if table in inner_tables():
            tables.setdefault(table, one.origin)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key in keys().values():
        values[key.name], origins[key.name] = key.default, DEFAULT
        if (found := given.get(key.name)) is not None:
            try:
                values[key.name], origins[key.name] = value_of(key, found.value), found.origin
            except ValueError as error:
                problems.append(f"{found.origin}: {key.name}: {error}")
        elif key.default is MISSING:
            values[key.name] = None
            _check_missing(key, tables, problems)
    _derive(values, origins)
    return Configuration(values, origins, tables, problems, warnings)


def _check_missing(key: ConfigKey, tables: Mapping[str, str], problems: list[str]) -> None:
    table, _, last = key.name.rpartition(".")
    if table in tables:
        problems.append(f"{tables[table]}: [{table}] needs {last}")


def _derive(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Require client certificates if authorities for them are configured, unless a layer sets
    `client_certificates`."""
    name, authorities = "bookie.tls.client_certificates", "bookie.tls.ca"
    if origins[name] == DEFAULT and values[authorities] is not None:
        values[name], origins[name] = "required", f"because of {authorities}"
