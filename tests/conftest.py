"""For all tests: no time-outs of hypothesis's own, for how long an example takes depends on what
else the machine does; and nothing written beside the tests."""

from __future__ import annotations

import os

from hypothesis import settings

# What is configured on this machine is not for tests.
os.environ["QUIRE_CONFIG"] = ""

settings.register_profile("quire", deadline=None, database=None)
settings.load_profile("quire")
