"""The command with which each bookie was started, for people who start it again.

A bookie writes it when it begins to serve. It is a node below the under-replication tree, which
stays when the bookie ends. No decision depends on it, and Apache's programs do not read it.
`forget_bookie` deletes the node of a bookie that was removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from quire.codec.metadata.stored_json import stored_json
from quire.errors import MetadataUnavailableError, QuireError
from quire.metadata.bookies.nodes import (
    delete_node,
    node_path,
    read_node,
    refuse_later,
    write_node,
)
from quire.metadata.interface import MetadataStore

NODE = "quire-start-commands"
WORDS_BYTES_MAX = 32 * 1024
"""The largest size of a command in bytes. A longer one is not written."""
_WHAT = "the start command of a bookie"


@dataclass(frozen=True, slots=True)
class StartCommand:
    """The command that started a bookie."""

    words: tuple[str, ...] = ()
    """The words of the command, the first of which is `quire`. Empty if they are not known."""
    working_directory: str = ""
    """The directory in which it was typed, if the command depends on it."""
    variables: tuple[str, ...] = ()
    """The names of the environment variables that also configured the bookie. Their values are not
    written, because one may be a password."""
    address: str = ""
    """The address at which the bookie served, as HOST:PORT. It tells where to look for a lost
    bookie whose id is not its address. Empty if it is not known."""


def encode(command: StartCommand) -> bytes:
    """Return the value of the node with this command."""
    return json.dumps(asdict(command)).encode()


def decode(data: bytes) -> StartCommand:
    """Return the command in the value of a node.

    Raises:
        LaterMetadataError: A later version of Quire wrote it.
        ValueError: The value is not a start command.
    """
    value = stored_json(data)
    refuse_later(_WHAT, value, [one.name for one in fields(StartCommand)])
    try:
        return StartCommand(
            tuple(map(str, value["words"])),
            str(value["working_directory"]),
            tuple(map(str, value["variables"])),
            str(value.get("address", "")),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not a start command ({error!r})") from None


def start_command_path(uri: str, bookie_id: str) -> str:
    """Return the path of the node with the start command of a bookie."""
    return node_path(uri, NODE, bookie_id)


async def read_start_command(store: MetadataStore, bookie_id: str) -> StartCommand | None:
    """Return the command that started a bookie, or None if it is not known or cannot be decoded.

    Raises MetadataUnavailableError if the store does not answer.
    """
    try:
        found = await read_node(store, start_command_path(store.uri, bookie_id), decode)
    except MetadataUnavailableError:
        raise
    except QuireError:
        return None
    return None if found is None or not found.value.words else found.value


async def write_start_command(store: MetadataStore, bookie_id: str, command: StartCommand) -> None:
    """Write the command that started a bookie, in place of the former one.

    A command of more than `WORDS_BYTES_MAX` is not stored. An empty command replaces the former
    one instead.

    Raises:
        LaterMetadataError: A later version of Quire wrote the former one.
        MetadataError: The former one cannot be decoded, the store fails, or somebody else wrote at
            the same time.
    """
    if sum(len(word.encode()) for word in command.words) > WORDS_BYTES_MAX:
        command = StartCommand(())
    path = start_command_path(store.uri, bookie_id)
    stored = await read_node(store, path, decode)
    if stored is None or stored.value != command:
        await write_node(store, path, encode(command), None if stored is None else stored.version)


async def forget_start_command(store: MetadataStore, bookie_id: str) -> None:
    """Delete the start command of a bookie, if there is one.

    Raises MetadataError if the store fails.
    """
    await delete_node(store, start_command_path(store.uri, bookie_id))
