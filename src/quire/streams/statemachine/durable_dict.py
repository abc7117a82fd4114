"""A dictionary whose changes are durable: the smallest useful replicated state machine.

    async with client.durable_dict("/team", "settings", create=True) as settings:
        await settings.set("colour", "blue")
        settings["colour"]

Keys are text, and values are whatever JSON can represent. A change is durable when its call
returns. Reads are served from memory. One process at a time has a dictionary open for writing;
opening it in another process takes it over.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from quire._runtime.names.former_names import deprecated
from quire._runtime.opening import Opening, open_or_closed, opening, represented
from quire.errors import ArgumentTypeError, UsageError, check_type
from quire.streams.namespace.namespace import Namespace
from quire.streams.statemachine.state_machine import Leader, lead

T = TypeVar("T")
A = TypeVar("A")

SNAPSHOT_EVERY = 10_000
NESTING_MAX = 100
"""The largest number of lists and dictionaries that a value may nest in each other.

Python decodes JSON with one level of its stack for each of them. How many fit depends on what else
is on the stack, so a value near that limit could be stored, and then not be restored.
"""
FORMER_NESTING_MAX = 2_000
"""More levels than any value can have that was stored before there was a limit."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _deeply(function: Callable[[A], T], argument: A) -> T:
    """Call a function of the JSON module, which may need more of the stack than is left.

    Without this, what a replica does with a deeply nested value would depend on its stack.
    """
    try:
        return function(argument)
    except RecursionError:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + FORMER_NESTING_MAX)
        try:
            return function(argument)
        finally:
            sys.setrecursionlimit(limit)


def _nesting(command: bytes) -> int:
    """Return the largest number of lists and dictionaries that a JSON text nests in each other."""
    if command.count(b"[") + command.count(b"{") <= NESTING_MAX:
        return 0  # certainly few enough, also if all of them are nested
    depth = deepest = 0
    for bracket in _STRING.sub(b"", command).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _decoded(command: bytes) -> Any:
    """Return the JSON value of a command, or None if it is not JSON."""
    try:
        return _deeply(json.loads, command)
    except ValueError:
        return None


def _stored(value: Any) -> str:
    """Return the JSON text of a value, with the keys of dictionaries sorted.

    In Python True, 1 and 1.0 are equal, but they are stored as different values.
    """
    return _deeply(lambda one: json.dumps(one, sort_keys=True), value)


def _copied(value: Any) -> Any:
    """Return a copy of a JSON value that shares no lists or dictionaries with it."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value


class Dictionary:
    """The state machine of a dictionary.

    Its commands are JSON lists: ["set", key, value], ["delete", key] or ["compare_stored", key,
    old, new]. Earlier versions wrote ["compare", key, old, new], which compares as Python does.
    """

    def __init__(self, name: str = "") -> None:
        """Create an empty dictionary. `name` is that of its stream, for error messages."""
        self.items: dict[str, Any] = {}
        self._what = f"state machine {name}" if name else "this state machine"
        self.has_other_records = False
        """Whether a record was not a command of a dictionary.

        The stream then belongs to another application, and a snapshot of this dictionary would
        truncate it.
        """

    def apply(self, command: bytes) -> bool:
        """Apply a command, and return whether it took effect.

        Args:
            command: The command as JSON.
        """
        match _decoded(command):
            case ["set", str(key), value]:
                self.items[key] = value
                return True
            case ["delete", str(key)]:
                return self.items.pop(key, self) is not self
            case ["compare_stored", str(key), old, new]:
                if _stored(self.items.get(key)) != _stored(old):
                    return False
                self.items[key] = new
                return True
            # Earlier versions wrote this command. It must have the effect that it had then.
            case ["compare", str(key), old, new] if self.items.get(key) == old:
                self.items[key] = new
                return True
            case ["set" | "delete" | "compare" | "compare_stored", *_]:
                return False
        self.has_other_records = True
        return False

    def snapshot(self) -> bytes:
        """Return the whole dictionary as JSON."""
        return _deeply(json.dumps, self.items).encode()

    def restore(self, state: bytes) -> None:
        """Replace the dictionary.

        Args:
            state: A dictionary as `snapshot` returns it.

        Raises:
            UsageError: The state is not that of a dictionary. Nothing was changed.
        """
        items = _decoded(state)
        if not isinstance(items, dict):
            raise UsageError(
                f"the snapshot of {self._what} is not that of a dictionary, but of a machine of "
                "another kind. No record was changed, but the former writer of the stream was "
                "fenced",
                remedy="Open the dictionary under another name, on a stream of its own",
            )
        self.items = items


class DurableDict(Mapping[str, Any]):
    """A dictionary whose changes are durable. `Client.durable_dict` opens it.

    Reads are served from memory and return copies of the values. A change to a returned list or
    dictionary is therefore stored only when it is passed to `set`. Calls that change the dictionary
    are durable when they return.

    Use it with `async with`, or call `close`.
    """

    leader: Leader[bool]
    """The leader of the state machine that holds the dictionary."""

    def __init__(self, machine: Dictionary, leader: Leader[bool]) -> None:
        self._machine = machine
        self.leader = leader

    def __repr__(self) -> str:
        state = open_or_closed(self.leader.closed)
        return represented(self, state, f"keys={len(self)}", name=self.leader.name)

    @classmethod
    def open(
        cls, streams: Namespace, name: str, *, snapshot_every: int = SNAPSHOT_EVERY
    ) -> Opening[DurableDict]:
        """Deprecated: use `client.durable_dict(namespace, name)`.

        Args:
            streams: The namespace that holds the dictionary's stream.
            name: The name of the stream.
            snapshot_every: The number of changes after which a snapshot is taken. 0 means never.

        Returns:
            The dictionary.
        """
        deprecated("DurableDict.open(streams, name)", "client.durable_dict(namespace, name)")
        return open_dict(streams, name, snapshot_every=snapshot_every)

    async def set(self, key: str, value: Any) -> None:
        """Set the value of a key. The change is durable on return.

        If the call is cancelled, the change may still be made.

        Args:
            key: The key.
            value: A value that JSON can represent. It is read back as JSON: a tuple becomes a list,
                and the keys of a dictionary become text.

        Raises:
            ArgumentTypeError: The key is not text, or JSON cannot represent the value. Nothing was
                changed.
            UsageError: The value is nested too deeply (`NESTING_MAX`). Nothing was changed.
            QuireError: The command failed. See `Leader.execute`.
        """
        await self._execute("set", key, value)

    async def delete(self, key: str) -> bool:
        """Delete a key. The change is durable on return.

        If the call is cancelled, the change may still be made.

        Args:
            key: The key.

        Returns:
            Whether the key existed.

        Raises:
            ArgumentTypeError: The key is not text. Nothing was changed.
            QuireError: The command failed. See `Leader.execute`.
        """
        return await self._execute("delete", key)

    async def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        """Set the value of a key if it has the expected value. The change is durable on return.

        If the call is cancelled, the change may still be made.

        Args:
            key: The key.
            old: The expected value. None expects that the key is missing or None. Values are
                compared as they are stored, so True, 1 and 1.0 differ. The order of the keys of
                dictionaries does not matter.
            new: The new value.

        Returns:
            Whether the expected value was found, and the new value was set.

        Raises:
            ArgumentTypeError: The key is not text, or JSON cannot represent a value. Nothing was
                changed.
            UsageError: A value is nested too deeply (`NESTING_MAX`). Nothing was changed.
            QuireError: The command failed. See `Leader.execute`.
        """
        return await self._execute("compare_stored", key, old, new)

    async def _execute(self, name: str, key: str, *values: Any) -> bool:
        check_type("a key of the dictionary", key, str)
        deep = False
        try:
            command = json.dumps((name, key, *values)).encode()
            deep = _nesting(command) > NESTING_MAX + 1  # the command is a list itself
        except RecursionError:
            deep = True
        except (TypeError, ValueError) as error:  # ValueError: it contains itself
            raise ArgumentTypeError(
                f"the value for key {key!r} of the dictionary cannot be stored as JSON: {error}. "
                "Nothing was changed"
            ) from None
        if deep:
            raise UsageError(
                f"the value for key {key!r} of the dictionary nests more than {NESTING_MAX} lists "
                "or dictionaries in each other. Nothing was changed",
                remedy="Store it as text, for example as JSON of its own",
            )
        return await self.leader.execute(command)

    def __getitem__(self, key: str) -> Any:
        return _deeply(_copied, self._machine.items[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._machine.items)

    def __len__(self) -> int:
        return len(self._machine.items)

    async def close(self) -> None:
        """Wait for the changes in progress, and close the dictionary.

        Calling this again is safe. If the call is cancelled, the dictionary is closed all the same.

        Raises:
            QuireError: The leader has failed. See `Leader.close`.
        """
        await self.leader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leader.__aexit__(kind, error, trace)


@opening
async def open_dict(
    streams: Namespace, name: str, *, create: bool = True, snapshot_every: int = SNAPSHOT_EVERY
) -> DurableDict:
    """Open a dictionary with the content that it had before. See `quire.Client.durable_dict`.

    If the call fails or is cancelled, nothing is lost: call it again.

    Args:
        streams: The namespace that holds the dictionary's stream.
        name: The name of the stream.
        create: Whether to create the stream if it does not exist.
        snapshot_every: The number of changes after which a snapshot is taken. 0 means never.

    Returns:
        The dictionary.

    Raises:
        UsageError: The stream holds records that are not changes of a dictionary, or the snapshot
            is not that of a dictionary.
        QuireError: The errors of `lead`.
    """
    machine = Dictionary(name)
    leader = await lead(
        streams, name, machine, snapshot_every=snapshot_every, create=create, keep_log=False
    )
    if machine.has_other_records:
        await leader.close()
        raise UsageError(
            f"stream {name} holds a record that is not a change of a dictionary, or is one of a "
            "later version of Quire. No record was changed, but the former writer of the stream "
            "was fenced",
            remedy="Open the dictionary on a stream of its own, or with the version that wrote it",
        )
    await leader._keep_log()
    return DurableDict(machine, leader)
