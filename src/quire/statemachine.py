"""Replicated state machines on streams: `lead`, `follow`, and a dictionary that survives.

The worked example of a write-ahead log: `quire.streams.state_machine` says how it is made.
"""

from __future__ import annotations

from quire.streams.durable_dict import Dictionary, DurableDict
from quire.streams.state_machine import Follower, Leader, StateMachine, follow, lead

__all__ = ["Dictionary", "DurableDict", "Follower", "Leader", "StateMachine", "follow", "lead"]
