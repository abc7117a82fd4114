"""The import directions of the folders, and what pure and simulated folders must not use.

The rules are checked on the syntax trees, so that an import inside a function or under
TYPE_CHECKING counts like any other. Each rule has made-up sources below that it must refuse, so a
checker that checks nothing fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = "quire"
SOURCE = Path(__file__).parents[4] / "src" / PACKAGE

# -- the rules --------------------------------------------------------------------------------

COMMON = {"errors", "config", "_runtime"}
"""May be imported by all, and import nothing of ours but `_runtime`; `config` also `errors`."""

WIRED = {"codec", "core", "storage", "metadata", "net"}
ROOT = "(package)"
"""`quire/__init__.py`: it offers the public names of the client and of the values it deals in."""

MAY_IMPORT: dict[str, set[str]] = {
    **{module: {"_runtime"} - {module} for module in COMMON},
    "config": {"_runtime", "errors"},
    "codec": set(),
    "core": {"codec"},
    "storage": {"codec", "core"},
    "metadata": {"codec", "core"},
    "net": {"codec"},
    "bookie": WIRED,
    "client": WIRED,
    "replication": {*WIRED, "client"},
    "configuration": {"codec", "replication"},
    "streams": {"codec", "core", "metadata", "client"},
    "statemachine": {"streams"},
    "api": {"metadata", "client", "streams"},
    "blocking": {"codec", "metadata", "net", "client", "streams", "api"},
    ROOT: {*WIRED, "client", "configuration", "api", "blocking"},
    "spark": {"client", "replication", "streams", "blocking", ROOT},
    "http": {*WIRED, "bookie", "client", "replication", "streams", ROOT},
}
MAY_IMPORT["__main__"] = {"cli"}  # `python -m quire`
MAY_IMPORT["testing"] = {*MAY_IMPORT} - {"spark", "__main__"}
MAY_IMPORT["cli"] = {*MAY_IMPORT} - {"__main__"}

PURE_ROOMS = {"codec", "core"}
IMPURE_MODULES = {
    "asyncio", "time", "os", "socket", "threading", "logging", "random", "subprocess",
}  # fmt: skip

FILE_MODULES = {"os", "shutil", "fcntl", "mmap", "tempfile", "pathlib"}
ONLY_DISK = "storage/disk.py"
AIOHTTP_MODULES = ("http/server/server.py", "http/server/fetch.py")

SIMULATED_ROOMS = {"codec", "core", "storage", "net", "bookie", "client", "replication", "streams"}
NOT_SIMULATED = {
    ONLY_DISK,
    "storage/worker.py",
    "net/tls.py",
    "bookie/main.py",
    "bookie/__main__.py",
    "client/cluster/location_files.py",
}
"""Modules below the interfaces or outside an event loop, in folders that are simulated."""

FROM_OUTSIDE = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter",
    "time.perf_counter_ns", "time.sleep", "datetime.datetime.now", "datetime.datetime.utcnow",
    "datetime.date.today", "io.open", "os.open", "os.urandom", "uuid.uuid1", "uuid.uuid4",
}  # fmt: skip
"""Time, files and chance that were not handed in. From `random`, only `random.Random` is allowed:
it names a type, or makes a generator from a seed."""


# -- the checker ------------------------------------------------------------------------------


def room_of(file: str) -> str:
    """`file` is relative to the package: 'codec/entry/entry.py', 'errors.py'."""
    first, _, rest = file.partition("/")
    if rest:
        return first
    module = first.removesuffix(".py")
    return ROOT if module == "__init__" else module


def imported_modules(tree: ast.Module, file: str) -> Iterator[tuple[int, str]]:
    """Return (line, dotted name) of everything imported; `from a import b` gives 'a.b'."""
    package = [PACKAGE, *Path(file).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            named = node.args[0]
            if called in ("__import__", "import_module", "importlib.import_module") and (
                isinstance(named, ast.Constant) and isinstance(named.value, str)
            ):
                yield node.lineno, named.value


def our_room(name: str, rooms: set[str]) -> str | None:
    """The room that an import of `name` reaches; None if it is not ours."""
    parts = name.split(".")
    if parts[0] != PACKAGE:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in rooms else ROOT


def bound_names(tree: ast.Module) -> dict[str, str]:
    """Return what the imported names of a module mean: {'t': 'time', 'now': 'time.time'}."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def used_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return (line, full dotted name) of every use of an imported name and of the builtin `open`.

    A use counts even if it is not a call: `clock=time.time` passes on the real clock.
    """
    bound = bound_names(tree)
    own_open = "open" in bound or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "open"
        for node in tree.body
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in bound:
                yield node.lineno, bound[node.id]
            elif node.id == "open" and not own_open:
                yield node.lineno, "open"
        elif isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in bound:
                rest = ast.unparse(node).partition(".")[2]
                yield node.lineno, f"{bound[root.id]}.{rest}"


def is_from_outside(name: str) -> bool:
    if name.startswith("random."):
        return name != "random.Random" and not name.startswith("random.Random.")
    return name == "open" or name in FROM_OUTSIDE or name.startswith("secrets.")


def violations_of_file(file: str, source: str, rooms: set[str]) -> Iterator[str]:
    tree = ast.parse(source, filename=file)
    room = room_of(file)
    if room not in MAY_IMPORT:
        yield f"{file}: the room {room} is not in the table of rooms"
        return
    for line, name in imported_modules(tree, file):
        where = f"{file}:{line}: {room}"
        top = name.split(".")[0]
        target = our_room(name, rooms)
        if target is not None and target != room and target not in COMMON | MAY_IMPORT[room]:
            yield f"{where} must not import {target} ({name})"
        if target not in {None, room, *MAY_IMPORT[room]} and room in COMMON:
            yield f"{where} is imported by all and must not import {target} ({name})"
        if top == "pyspark" and room != "spark":
            yield f"{where} must not import pyspark: only spark may"
        if top == "quire_simulator":
            yield f"{where} must not import quire_simulator: it is not installed with Quire"
        if top == "aiohttp" and file not in AIOHTTP_MODULES:
            yield f"{where} must not import aiohttp: only {' and '.join(AIOHTTP_MODULES)} may"
        if room in PURE_ROOMS and top in IMPURE_MODULES:
            yield f"{where} is pure and must not import {top}"
        if room == "storage" and file != ONLY_DISK and top in FILE_MODULES:
            yield f"{where}: only {ONLY_DISK} may import {top}"
    if room in SIMULATED_ROOMS and file not in NOT_SIMULATED:
        for line, name in used_names(tree):
            if is_from_outside(name):
                yield f"{file}:{line}: {room} is simulated and must be handed what {name} gives"


def violations(files: Mapping[str, str]) -> list[str]:
    rooms = {room_of(file) for file in files} | set(MAY_IMPORT)
    found = (v for file, source in files.items() for v in violations_of_file(file, source, rooms))
    return sorted(set(found))


# -- our own sources --------------------------------------------------------------------------


def our_sources() -> dict[str, str]:
    return {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }


def test_the_sources_follow_the_import_rules() -> None:
    assert violations(our_sources()) == []


def test_all_sources_are_checked() -> None:
    """The walk reaches every room that has a directory."""
    seen = {room_of(file) for file in our_sources()}
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} <= seen
    assert {"codec", "core", "storage", "metadata", "net", "errors", "_runtime"} <= seen


# -- made-up sources --------------------------------------------------------------------------

REFUSED = [
    # import directions
    ("codec/x.py", "from quire.core.append.quorum import write_set", "codec must not import core"),
    ("core/x.py", "import quire.storage.log.group_commit", "core must not import storage"),
    ("storage/x.py", "from quire import metadata", "storage must not import metadata"),
    ("net/x.py", "from ..core import quorum", "net must not import core"),
    ("metadata/x.py", "from quire.net import network", "metadata must not import net"),
    ("client/x.py", "def f():\n    import quire.bookie.main", "client must not import bookie"),
    ("bookie/sub/x.py", "from ...client import api", "bookie must not import client"),
    ("streams/x.py", "from quire.net.network import Network", "streams must not import net"),
    ("spark/x.py", "from quire.metadata import base", "spark must not import metadata"),
    ("testing/x.py", "from quire.spark import source", "testing must not import spark"),
    ("testing/x.py", "from quire.cli import main", "testing must not import cli"),
    ("codec/x.py", "import quire", "codec must not import (package)"),
    ("client/x.py", "from quire import api", "client must not import api"),
    ("streams/x.py", "from quire import connect", "streams must not import (package)"),
    ("__init__.py", "from quire.bookie import server", "(package) must not import bookie"),
    ("core/x.py", "m = importlib.import_module('quire.net')", "core must not import net"),
    ("core/x.py", "if TYPE_CHECKING:\n    import quire.client", "core must not import client"),
    ("__main__.py", "from quire.storage import log", "__main__ must not import storage"),
    ("client/x.py", "import quire.__main__", "client must not import __main__"),
    ("errors.py", "from quire.codec import entry", "must not import codec"),
    ("_runtime/clock.py", "from quire.errors import QuireError", "is imported by all"),
    ("config.py", "from quire.codec import entry", "is imported by all"),
    ("attic/x.py", "", "not in the table"),
    # pyspark
    ("client/x.py", "from pyspark.sql import DataFrame", "only spark may"),
    ("cli/x.py", "def f():\n    import pyspark", "only spark may"),
    ("testing/x.py", "__import__('pyspark')", "only spark may"),
    (
        "http/x.py",
        "from aiohttp import web",
        "only http/server/server.py and http/server/fetch.py may",
    ),
    ("bookie/x.py", "import quire.http.server.api", "bookie must not import http"),
    ("testing/x.py", "import quire_simulator.run", "testing must not import quire_simulator"),
    # the pure rooms
    *(("codec/x.py", f"import {m}", f"must not import {m}") for m in sorted(IMPURE_MODULES)),
    ("core/x.py", "from os.path import join", "must not import os"),
    # files
    ("storage/log/group_commit.py", "import os", "only storage/disk.py may import os"),
    ("storage/worker.py", "from pathlib import Path", "may import pathlib"),
    # time, files and chance
    ("client/x.py", "import time\ntime.time()", "what time.time gives"),
    ("client/x.py", "import time as t\nt.monotonic()", "what time.monotonic gives"),
    ("bookie/x.py", "from time import time_ns as now\nnow()", "what time.time_ns gives"),
    ("bookie/x.py", "import time\ndef f(now=time.time): ...", "what time.time gives"),
    ("net/x.py", "import random\nrandom.choice([1])", "what random.choice gives"),
    ("net/x.py", "from random import shuffle\nshuffle([])", "what random.shuffle gives"),
    ("storage/x.py", "with open('a') as f: ...", "what open gives"),
    ("client/x.py", "import uuid\nuuid.uuid4()", "what uuid.uuid4 gives"),
    ("client/x.py", "import secrets\nsecrets.token_bytes(4)", "what secrets.token_bytes gives"),
    ("client/x.py", "from datetime import datetime as d\nd.now()", "datetime.datetime.now gives"),
]

ACCEPTED = [
    ("codec/x.py", "import struct\nfrom quire.errors import ProtocolError"),
    ("core/x.py", "from quire.codec.entry.entry import Entry\nfrom quire._runtime import clock"),
    ("core/x.py", "from . import quorum\nfrom .quorum import write_set"),
    ("storage/disk.py", "import os, fcntl\nopen('a')"),
    ("storage/worker.py", "import time, threading\ntime.monotonic()"),
    ("net/x.py", "import asyncio\nasyncio.get_running_loop().time()"),
    ("client/x.py", "import random\ndef f(rng: random.Random): rng.random()\nrandom.Random(7)"),
    ("client/x.py", "async def open(ledger): ...\nawait_ = open"),
    ("client/x.py", "disk.open('a'); self.time.time(); time = 3"),
    ("client/cluster/location_files.py", "import time\ntime.sleep(1)"),
    ("replication/x.py", "from quire.client import api\nfrom quire.storage import log"),
    ("streams/x.py", "from quire.client import Client\nfrom quire.metadata import update"),
    ("spark/x.py", "import pyspark.sql\nfrom quire.client import api\nimport quire"),
    ("cli/x.py", "from quire.spark import source\nfrom quire.testing import cluster"),
    ("cli/x.py", "importlib.util.find_spec('pyspark')"),
    ("__main__.py", "from quire.cli.main import main"),
    ("__init__.py", "from quire.client import Client\nfrom quire.errors import QuireError"),
]


@pytest.mark.parametrize(("file", "source", "message"), REFUSED)
def test_the_checker_refuses_forbidden_imports(file: str, source: str, message: str) -> None:
    found = violations({file: source})
    assert any(message in violation for violation in found), found


@pytest.mark.parametrize(("file", "source"), ACCEPTED)
def test_the_checker_accepts_allowed_imports(file: str, source: str) -> None:
    assert violations({file: source}) == []


def test_the_checker_names_file_and_line() -> None:
    (violation,) = violations({"core/x.py": "import struct\n\nimport quire.net"})
    assert violation.startswith("core/x.py:3:")
