"""A state machine whose state says which commands were applied, and what is known of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

State = tuple[int, str]
"""How many commands were applied, and a hash over all of them, one after the other."""


@dataclass
class Commands:
    """What is known of the commands of one state machine."""

    tell: Callable[[str, str], None]
    """An invariant that does not hold, and what was found."""
    chain: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Number -> (hash, command): what any machine has applied."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Command -> number."""
    acked: dict[str, int] = field(default_factory=dict)
    begun: int = 0

    @property
    def last_acked(self) -> int:
        return max(self.acked.values(), default=0)

    def applied(self, state: State, command: str) -> None:
        number, digest = state
        if self.chain.setdefault(number, (digest, command)) != (digest, command):
            what = f"command {number} is {command}, and {self.chain[number][1]}"
            self.tell("machines_agree", what)
        if self.numbers.setdefault(command, number) != number:
            what = f"{command} is {number}, and {self.numbers[command]}"
            self.tell("a_command_is_applied_once", what)

    def restored(self, state: State) -> None:
        number, digest = state
        if number and self.chain.get(number, (digest, ""))[0] != digest:
            self.tell("machines_agree", f"a snapshot of {number} commands is another state")

    def executed(self, command: str, state: State) -> None:
        self.acked[command] = state[0]
        if self.numbers.get(command) != state[0]:
            self.tell("a_command_is_applied_once", f"{command} was told to be {state[0]}")


class HashChain:
    """The machine: its state says which commands were applied, in which order."""

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
