"""The built-in exceptions that our errors derive from, and that our code distinguishes them."""

from __future__ import annotations

import ast
import builtins
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import errors
from quire.errors import QuireError

ROOT = Path(__file__).parents[4]
SOURCES = [*sorted((ROOT / "src" / "quire").rglob("*.py"))]

ALSO = {
    "AddQuorumTimeoutError": TimeoutError,
    "ArgumentTypeError": TypeError,
    "BookieTimeoutError": TimeoutError,
    "BookieUnavailableError": ConnectionError,
    "EntryExistsError": ValueError,
    "EntryTooLargeError": ValueError,
    "LaterCheckpointError": ValueError,
    "LedgerExistsError": FileExistsError,
    "MetadataDeniedError": PermissionError,
    "MetadataURIError": ValueError,
    "MetadataUnavailableError": ConnectionError,
    "NoSuchEntryError": IndexError,
    "NoSuchKeyError": KeyError,
    "NoSuchLedgerError": KeyError,
    "NoSuchNamespaceError": FileNotFoundError,
    "NoSuchObjectError": FileNotFoundError,
    "NoSuchStreamError": FileNotFoundError,
    "ObjectExistsError": FileExistsError,
    "RecordTooLargeError": ValueError,
    "SilentConnectionError": ConnectionError,
    "StreamExistsError": FileExistsError,
    "TlsError": ConnectionError,
    "TxidOrderError": ValueError,
    "UnauthorizedError": PermissionError,
    "UsageError": ValueError,
}
NONE_FITS = {
    "BookieBusyError", "BookieError", "BookieIOError", "BookieReadOnlyError", "ClientClosedError",
    "ClusterNotInitialisedError", "CollectionOffError", "CookieError", "DamagedError",
    "DataUnknownError", "DigestError", "DiskFullError", "HistoryDamagedError", "HistoryError",
    "JobError", "JobRefusedError", "KeyExistsError", "LaterClusterError", "LaterCookieError",
    "LaterHistoryError",
    "LaterMetadataError", "LaterRowsError",
    "LaterStorageError", "LaterStreamError", "LaterVersionError", "LedgerClosedError",
    "LedgerError", "LedgerFencedError",
    "LedgerOwnedError", "LedgerRecreatedError", "MetadataError", "MetadataTooLargeError",
    "MetadataWentBackError", "NotEmptyError", "NotEnoughBookiesError", "ObjectDamagedError",
    "ProtocolError", "QuireError", "ReadError", "RecoveryError", "StartError", "StorageError",
    "StreamClosedError", "StreamConditionError", "StreamDamagedError", "StreamDivergedError",
    "StreamEndedError", "StreamError", "StreamFencedError", "StreamGapError", "StreamLockedError",
    "StreamQuotaError", "TlsConfigError", "UnreadableMetadataError", "VersionConflictError",
    "WriteError",
}  # fmt: skip
"""Classes for which no built-in exception fits.

Errors of disks are not OSErrors, because our handlers of OSError are about the operating system.
"""

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, QuireError)
]


def test_every_error_has_been_considered() -> None:
    assert {kind.__name__ for kind in KINDS} == {*ALSO, *NONE_FITS}
    for name, kind in ALSO.items():
        assert issubclass(getattr(errors, name), kind), name
    pythons = (OSError, ValueError, LookupError, TypeError)
    assert not [name for name in NONE_FITS if issubclass(getattr(errors, name), pythons)]


def test_the_documents_have_the_table() -> None:
    text = (ROOT / "docs" / "reference" / "client.md").read_text(encoding="utf-8")
    for name, kind in ALSO.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| `{kind.__name__}` |")]
        assert any(f"`{name}`" in row for row in rows), name


MADE_OF_A_MESSAGE = [kind for kind in KINDS if kind is not errors.LedgerOwnedError]
"""`LedgerOwnedError` makes its message of the owners."""


@pytest.mark.parametrize("kind", MADE_OF_A_MESSAGE, ids=lambda kind: kind.__name__)
def test_errors_keep_message_cause_and_code(kind: type[QuireError]) -> None:
    error = kind("what happened", causes={"b1": "why"}, remedy="Do this")
    assert str(error) == "what happened (b1: why). Do this"
    assert error.args == ("what happened",)
    assert isinstance(error.code, int)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.causes) == (kind, str(error), {"b1": "why"})


def test_a_message_that_asks_a_question_has_one_punctuation_mark() -> None:
    error = errors.UsageError("there is no key 'prt'; did you mean port?", remedy="Correct it")
    assert str(error) == "there is no key 'prt'; did you mean port? Correct it"


# -- what a message says of the outcome -------------------------------------------------------

OPEN = {kind.__name__ for kind in KINDS if not kind.outcome_known}
"""The classes of errors that leave the outcome open."""
NOTHING = re.compile(
    r"\b[Nn]othing was (?!lost)|was not (?:asked|started|opened for writing)|made no plan"
)
SET_BY_ITS_CALLER = {"publishing.py": "publish() sets it for all errors but one class"}


def _sure_without_saying_so(path: Path) -> Iterator[str]:
    """Yield the places of errors that say that nothing was done, with an open outcome."""
    calls = [
        (node.func.id, node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
    ]
    sure = {id(call.args[0]) for name, call in calls if name == "nothing_done"}
    for name, call in calls:
        says_so = name in OPEN and NOTHING.search(ast.unparse(call.args[0]))
        if says_so and id(call) not in sure:
            yield f"{path.name}:{call.lineno}"


def test_errors_that_claim_no_effect_have_a_known_outcome() -> None:
    found = [place for path in SOURCES for place in _sure_without_saying_so(path)]
    assert not [place for place in found if place.partition(":")[0] not in SET_BY_ITS_CALLER]
    assert {place.partition(":")[0] for place in found} == {*SET_BY_ITS_CALLER}


# -- our own handlers -------------------------------------------------------------------------

PYTHONS = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, OSError | ValueError | LookupError)
    and not issubclass(kind, UnicodeError)
}  # fmt: skip
WAITS_ONLY = {
    "accepting.py": "the event loop accepts and shakes hands, and raises none of ours",
    "bookie_process.py": "only pipes to a process are used",
    "bookies.py": "no bookie is asked",
    "check.py": "decoding",
    "destroyed.py": "no bookie is asked",
    "election.py": "decoding; NoSuchKeyError is meant",
    "handshake.py": "the inner one is about the system's handshake",
    "kazoo_adapter.py": "no bookie is asked",
    "location_files.py": "UsageError is meant",
    "port_probe.py": "only the network is asked, which raises none of ours",
    "lock.py": "no bookie is asked",
    "locks.py": "decoding; NoSuchKeyError is meant",
    "main.py": "stopping a bookie raises none of ours",
    "marks.py": "decoding; NoSuchKeyError is meant",
    "network.py": "the system connects, and none of ours is raised",
    "notes.py": "decoding; NoSuchKeyError is meant",
    "prometheus.py": "decoding an answer; a HistoryError is none of Python's errors",
    "reachability.py": "only a socket is opened",
    "rebuild.py": "nothing is thrown into the generator",
    "reports.py": "only pipes to a process are used; QuireError is caught inside",
    "rollback.py": "it writes to the metadata store, which raises no time-out",
    "root.py": "no bookie is asked",
    "security.py": "the handshake is the system's",
    "server.py": "listening is the system's; reading a request is the system's",
    "store.py": "the disk's errors are the system's",
    "supervisor.py": "only processes are waited for",
}
"""The names of files with handlers of Python's errors around calls that are waited for, and why
these catch none of our errors by accident."""


def careless(tree: ast.Module) -> Iterator[int]:
    """The lines of handlers that may catch one of our errors as one of Python's by accident."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        body = ast.Module(node.body, [])
        waits = [
            one
            for one in ast.walk(body)
            if (isinstance(one, ast.Await) and not ast.unparse(one).endswith(".wait()"))
            or isinstance(one, ast.Yield | ast.AsyncFor)
        ]
        ours = False
        for handler in node.handlers:
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {ast.unparse(kind) for kind in kinds if kind is not None}
            if not ours and waits and names & PYTHONS and "QuireError" not in names:
                yield handler.lineno
            ours |= "QuireError" in names


def test_no_handler_catches_quire_errors_as_builtin_errors() -> None:
    found: dict[str, list[int]] = {}
    for path in SOURCES:
        lines = list(careless(ast.parse(path.read_text(encoding="utf-8"))))
        if lines:
            found.setdefault(path.name, []).extend(lines)
    assert {name: lines for name, lines in found.items() if name not in WAITS_ONLY} == {}
    assert WAITS_ONLY.keys() <= found.keys(), "these entries no longer need a reason"


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("try:\n    await ask()\nexcept TimeoutError: ...", True),
        ("try:\n    yield\nexcept OSError: ...", True),
        ("try:\n    await ask()\nexcept QuireError: raise\nexcept TimeoutError: ...", False),
        ("try:\n    await ask()\nexcept (QuireError, TimeoutError): ...", False),
        ("try:\n    await event.wait()\nexcept TimeoutError: ...", False),
        ("try:\n    open(path)\nexcept OSError: ...", False),
    ],
)
def test_the_checker_recognizes_careless_handlers(source: str, refused: bool) -> None:
    tree = ast.parse("async def f():\n" + "\n".join(f"    {line}" for line in source.split("\n")))
    assert bool(list(careless(tree))) is refused
