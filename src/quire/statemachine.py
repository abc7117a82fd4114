"""Replicated state machines on streams: `lead`, `follow`, and a dictionary that survives.

The worked example of a write-ahead log: `quire.streams.statemachine.state_machine` says how it is
made.
"""

from __future__ import annotations

from quire.streams.statemachine.durable_dict import Dictionary, DurableDict
from quire.streams.statemachine.state_machine import Follower, Leader, StateMachine, follow, lead

__all__ = ["Dictionary", "DurableDict", "Follower", "Leader", "StateMachine", "follow", "lead"]
