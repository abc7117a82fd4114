"""No error offers destruction as the way out of a confusion.

Every remedy in the code is found on the syntax trees. A remedy that mentions destruction is in the
list below, with a reason. If the caller did not ask for destruction, the first sentence of the
remedy must say how to find out more, or what is safe.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import quire

ROOT = Path(quire.__file__).parent
DESTRUCTIVE = re.compile(
    r"\b(formats?|formatted|eras(?:e[sd]?|ing)|delet(?:e[sd]?|ing|eall)|destroy\w*|wip(?:e[sd]?|ing)"
    r"|remov(?:e[sd]?|ing)|rm|give[ns]? (?:\w+ )?up)\b|--force",
    re.IGNORECASE,
)

MAKERS = ("give_up", "_remove_remedy", "_without")
"""Functions that return a remedy, or a part of one."""

ASKED_FOR = {
    "streams/namespace/stream_metadata.py:StreamMetadata.refuse_deleted": "a user has begun to "
    "delete the stream",
    "streams/topics/topic_metadata.py:TopicMetadata.read": "a user has begun to delete the topic",
    "streams/topics/topic_metadata.py:topic_exists": "a user has begun to delete the topic",
    "cli/bookie/init.py:_Erasing.__init__": "the caller formats a directory",
    "cli/bookie/init.py:_the_one_cookie": "the caller formats directories",
    "cli/cluster/metadata.py:check_erasable": "the caller erases a cluster",
    "metadata/common.py:not_empty": "the caller deletes a node",
    "errors.py:LedgerOwnedError": "the caller deletes a ledger",
    "bookie/background/orders.py:Orders._end": "the bookie was decommissioned by its operator, "
    "ledger by ledger, and cannot start on this directory again",
    "spark/streams/writer.py:refuse_overwrite": "the caller asked to overwrite a stream",
    "cli/bookie/identity.py:check_not_needed": "the caller removes a bookie's cookie",
}
"""Remedies for callers who asked for destruction, or who destroyed already."""

HARMLESS = {
    "client/datasets/datasets.py:Datasets._check_publishable.missing": "what the cause may be",
    "client/cluster/location_files.py:FileLocations._read": "lines of a file of locations",
    "codec/distributedlog/compression.py:Compression.parse": "the format of streams",
    "spark/jobs/ingest.py:format_of": "the format of input files",
    "spark/jobs/offload.py:OffloadOptions.__post_init__": "the format of files",
    "errors.py:MetadataTooLargeError": "what is still possible with the ledger",
    "metadata/ledgers/unreadable.py:REMEDY": "that nothing is deleted",
    "metadata/ledgers/unreadable.py:decode_ledger": "that nothing is deleted",
    "metadata/zookeeper/listing.py:_Walk.unknown": "that nothing is deleted",
    "metadata/zookeeper/listing.py:_foreign": "that nothing is deleted",
}
"""Texts that contain such a word without offering destruction."""

LOOK_FIRST = {
    "bookie/directories/identity.py:give_up": "shows whose a directory is, and names the condition",
    "bookie/directories/identity.py:check_identity": "the cookie is written again",
    "bookie/directories/identity.py:create_identity": "another directory, or a new cookie",
    "bookie/directories/identity.py:check_current": "the right directory is put back",
    "bookie/directories/cookie_directories.py:_check_new": "an empty directory is used",
    "bookie/directories/lost_directory.py:check_lost": "the bookie starts with it",
    "bookie/directories/lost_directory.py:check_successor": "an empty directory is used",
    "cli/bookie/cookie.py:_cookie_there": "all directories are named",
    "bookie/directories/cookie_directories.py:_without": "an empty directory replaces it; "
    "copies come back; `disk remove` refuses while a ledger needs it",
    "cli/bookie/cookie.py:_update_all": "all directories are named",
    "cli/bookie/cookie.py:_check_instance": "the right store is named, or restored",
    "cli/servers/processes/division.py:check_places": "every bookie is started",
    "errors.py:DiskFullError": "what takes the space is looked at",
    "metadata/ledgers/underreplicated.py:decoded_mark": "the version that wrote the mark is used; "
    "the auditor makes the mark again",
    "metadata/zookeeper/values.py:Values._remove_remedy": "whose the node is, is looked at",
    "spark/jobs/archive/store.py:ArchiveDirectory._remove_partial": "the size of the file shows "
    "whether it is incomplete",
    "replication/repair/deleted_ledger.py:_held": "the bookies are started",
    "spark/jobs/replicate_preview.py:_preview": "the ledger is restored",
    "streams/mirror/mirror.py:Mirror._add": "the ledger is looked at",
    "streams/mirror/mirror.py:Mirror._fenced": "the other writer is ended",
    "streams/mirror/mirror.py:Mirror._mirror": "the ledger is restored",
    "streams/mirror/check.py:REMEDY": "another namespace is used",
    "streams/namespace/namespace.py:Namespace._check_room": "the limit is raised",
    "streams/namespace/namespace.py:Namespace._check_size_of_rename": "the subscriptions are "
    "looked at",
    "streams/namespace/namespace.py:Namespace._refuse_snapshot": "the name is kept",
}
"""The others: by the way out that comes first."""


@cache
def remedies() -> list[tuple[str, str]]:
    """Return where each remedy is, and its text, with {} for unknown parts."""
    return [one for path in sorted(ROOT.rglob("*.py")) for one in _remedies_of(path)]


def _remedies_of(path: Path) -> Iterator[tuple[str, str]]:
    file = path.relative_to(ROOT)
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse(path.read_text(encoding="utf-8")))]
    while waiting:
        place, node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            place = f"{place}.{node.name}" if place else node.name
        waiting += [(place, child) for child in ast.iter_child_nodes(node)]
        name = f"{file}:{place}"
        if isinstance(node, ast.keyword) and node.arg == "remedy":
            yield name, _text(node.value)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [getattr(one, "id", getattr(one, "attr", "")) for one in targets]
            if any("remedy" in one.lower() for one in names):
                yield name if place else f"{name}{names[0]}", _text(node.value)
        elif isinstance(node, ast.Return) and place.rpartition(".")[2] in MAKERS and node.value:
            yield name, _text(node.value)


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(str(value)):
            return value
        case ast.JoinedStr(values):
            return "".join(map(_text, values))
        case ast.FormattedValue(value):
            return _text(value)
        case ast.BinOp(left, ast.Add(), right):
            return _text(left) + _text(right)
        case ast.IfExp(_, body, otherwise):
            return f"{_text(body)} {_text(otherwise)}"
        case ast.Call(ast.Name("repair"), arguments):
            return "quire bookie " + " ".join(map(_text, arguments))
        case ast.Call(ast.Name("command_with"), [command, *arguments]):
            return " ".join(map(_text, [command, *arguments]))
        case ast.Call(ast.Name("give_up")):
            return "See {}. Only then format it"
        case ast.Call(ast.Name("erasing")):
            return "Only if nobody needs it, format it"
    return "{}"


def test_every_remedy_that_destroys_has_its_reason() -> None:
    found = remedies()
    assert len(found) > 250  # the reader of the trees works
    destructive = {place for place, text in found if DESTRUCTIVE.search(text)}
    listed = {*ASKED_FOR, *HARMLESS, *LOOK_FIRST}
    assert destructive - listed == set(), (
        "say first how to check, then list the remedy with a reason"
    )
    assert listed - destructive == set(), "a listed remedy destroys nothing"


def test_the_first_sentence_of_a_remedy_is_a_safe_step() -> None:
    for place, text in remedies():
        if place in LOOK_FIRST and DESTRUCTIVE.search(text):
            first = re.split(r"(?<=[.;:]) ", text, maxsplit=1)[0]
            assert not DESTRUCTIVE.search(first), (place, text)
