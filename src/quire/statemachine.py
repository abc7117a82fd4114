"""Replicated state machines on streams, and a dictionary whose changes are durable.

    async with client.state_machine("/team", "accounts", Accounts(), create=True) as leader:
        balance = await leader.execute(b"deposit 5")

`quire.streams.statemachine.state_machine` explains how a state machine uses the log.
"""

from __future__ import annotations

from typing import TypeVar

from quire._runtime.names.former_names import deprecated
from quire._runtime.opening import Opening
from quire.streams.namespace.namespace import Namespace
from quire.streams.statemachine import state_machine
from quire.streams.statemachine.durable_dict import Dictionary, DurableDict
from quire.streams.statemachine.state_machine import Follower, Leader, StateMachine

__all__ = ["Dictionary", "DurableDict", "Follower", "Leader", "StateMachine", "follow", "lead"]

ResultT = TypeVar("ResultT")


def lead(
    streams: Namespace,
    name: str,
    machine: StateMachine[ResultT],
    *,
    snapshot_every: int = 0,
) -> Opening[Leader[ResultT]]:
    """Deprecated: use `client.state_machine(namespace, name, machine, create=True)`.

    Args:
        streams: The namespace that holds the machine's stream.
        name: The name of the stream.
        machine: A new machine, without state.
        snapshot_every: The number of commands since the last snapshot after which the next one is
            taken. Commands of former leaders count. 0 means never.

    Returns:
        The leader. Await it, or enter it with `async with`.

    Raises:
        QuireError: The errors of `Client.state_machine`, when the result is awaited or entered.
    """
    deprecated("quire.statemachine.lead", "client.state_machine(namespace, name, machine)")
    return state_machine.lead(streams, name, machine, snapshot_every=snapshot_every)


def follow(
    streams: Namespace, name: str, machine: StateMachine[ResultT]
) -> Opening[Follower[ResultT]]:
    """Deprecated: use `client.state_machine(namespace, name, machine, follow=True)`.

    Args:
        streams: The namespace that holds the machine's stream.
        name: The name of the stream.
        machine: A new machine, without state.

    Returns:
        The follower. Await it, or enter it with `async with`.
    """
    deprecated(
        "quire.statemachine.follow", "client.state_machine(namespace, name, machine, follow=True)"
    )
    return state_machine.follow(streams, name, machine)
