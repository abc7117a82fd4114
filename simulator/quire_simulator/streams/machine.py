"""A state machine whose state identifies the applied commands, and the facts known about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

State = tuple[int, str]
"""The number of applied commands, and a hash over all of them in order."""


@dataclass
class Commands:
    """Everything known about the commands of one state machine."""

    tell: Callable[[str, str], None]
    """Reports an invariant that does not hold, and what was found."""
    chain: dict[int, tuple[str, str]] = field(default_factory=dict)
    """The hash and command with each number, as applied by any machine."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The number of each command."""
    acked: dict[str, int] = field(default_factory=dict)
    begun: int = 0

    @property
    def last_acked(self) -> int:
        return max(self.acked.values(), default=0)

    def applied(self, state: State, command: str) -> None:
        number, digest = state
        if self.chain.setdefault(number, (digest, command)) != (digest, command):
            what = f"command {number} is both {command} and {self.chain[number][1]}"
            self.tell("machines_agree", what)
        if self.numbers.setdefault(command, number) != number:
            what = f"{command} is both number {number} and number {self.numbers[command]}"
            self.tell("a_command_is_applied_once", what)

    def restored(self, state: State) -> None:
        number, digest = state
        if number and self.chain.get(number, (digest, ""))[0] != digest:
            self.tell("machines_agree", f"a snapshot of {number} commands has a different state")

    def executed(self, command: str, state: State) -> None:
        self.acked[command] = state[0]
        if self.numbers.get(command) != state[0]:
            self.tell(
                "a_command_is_applied_once",
                f"{command} was reported as number {state[0]}, but was not applied as that",
            )


class HashChain:
    """A state machine whose state identifies the applied commands and their order."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self.state: State = (0, "")

    def apply(self, command: bytes) -> State:
        number, digest = self.state
        digest = hashlib.sha256(digest.encode() + command).hexdigest()[:16]
        self.state = (number + 1, digest)
        self._commands.applied(self.state, command.decode())
        return self.state

    def snapshot(self) -> bytes:
        return json.dumps(self.state).encode()

    def restore(self, state: bytes) -> None:
        number, digest = json.loads(state)
        self.state = (number, digest)
        self._commands.restored(self.state)
