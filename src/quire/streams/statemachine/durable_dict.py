"""A dictionary that survives: the smallest useful replicated state machine.

    async with client.durable_dict("/team", "settings", create=True) as settings:
        await settings.set("colour", "blue")
        settings["colour"]

Keys are text, values whatever JSON knows. Changes are durable when their call returns; reading is
from memory. One process has it open for writing; opening it elsewhere takes it over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from quire._runtime.former_names import deprecated
from quire._runtime.opening import Opening, open_or_closed, opening, represented
from quire.errors import ArgumentTypeError, UsageError, check_type
from quire.streams.namespace.namespace import Namespace
from quire.streams.statemachine.state_machine import Leader, lead

SNAPSHOT_EVERY = 10_000


def _decoded(command: bytes) -> Any:
    """Return the JSON value of a command, or None if it is not JSON."""
    try:
        return json.loads(command)
    except ValueError:
        return None


def _copied(value: Any) -> Any:
    """Return a value of JSON whose lists and dictionaries are the caller's own."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value


class Dictionary:
    """The machine: commands are JSON lists, ["set", key, value], ["delete", key] or
    ["compare", key, old, new]."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.has_other_records = False
        """Whether a record was no command. The stream then belongs to somebody else, and a snapshot
        of this dictionary would truncate it."""

    def apply(self, command: bytes) -> bool:
        """Apply a command, and return whether it changed anything."""
        match _decoded(command):
            case ["set", str(key), value]:
                self.items[key] = value
                return True
            case ["delete", str(key)]:
                return self.items.pop(key, self) is not self
            case ["compare", str(key), old, new] if self.items.get(key) == old:
                self.items[key] = new
                return True
            case ["set" | "delete" | "compare", *_]:
                return False
        self.has_other_records = True
        return False

    def snapshot(self) -> bytes:
        return json.dumps(self.items).encode()

    def restore(self, state: bytes) -> None:
        self.items = json.loads(state)


class DurableDict(Mapping[str, Any]):
    """A dictionary that survives. Made by `Client.durable_dict`.

    Reading is from memory, and gives copies of values: a list that the caller changes is stored
    only when it is given to `set`. Calls that change the dictionary are durable when they return,
    and raise what `Leader.execute` raises. Use as `async with`, or call `close`.
    """

    leader: Leader[bool]
    """The leader of the state machine behind it."""

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
        """Deprecated: use `client.durable_dict(namespace, name)`."""
        deprecated("DurableDict.open(streams, name)", "client.durable_dict(namespace, name)")
        return open_dict(streams, name, snapshot_every=snapshot_every)

    async def set(self, key: str, value: Any) -> None:
        """Set a value. It is durable on return. Raises ArgumentTypeError for a key that is not text
        and for a value that JSON does not know: nothing was changed."""
        await self._execute("set", key, value)

    async def delete(self, key: str) -> bool:
        """Whether it was there."""
        return await self._execute("delete", key)

    async def compare_and_set(self, key: str, old: Any, new: Any) -> bool:
        """Set `new` where the value is `old` (None: where there is none). Whether that was so."""
        return await self._execute("compare", key, old, new)

    async def _execute(self, name: str, key: str, *values: Any) -> bool:
        check_type("a key of the dictionary", key, str)
        try:
            command = json.dumps((name, key, *values)).encode()
        except (TypeError, ValueError) as error:  # ValueError: it contains itself
            raise ArgumentTypeError(
                f"the value for {key!r} cannot be stored as JSON: {error}. Nothing was changed"
            ) from None
        return await self.leader.execute(command)

    def __getitem__(self, key: str) -> Any:
        return _copied(self._machine.items[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._machine.items)

    def __len__(self) -> int:
        return len(self._machine.items)

    async def close(self) -> None:
        """Wait for the changes under way, and give up the dictionary."""
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
    """Open a dictionary as it was left. See `quire.Client.durable_dict`."""
    machine = Dictionary()
    leader = await lead(streams, name, machine, snapshot_every=snapshot_every, create=create)
    if machine.has_other_records:
        await leader.close()
        raise UsageError(
            f"stream {name} has a record that is no command of a dictionary. Nothing was changed",
            remedy="Give the dictionary the name of a stream of its own",
        )
    return DurableDict(machine, leader)
