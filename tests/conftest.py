"""For all tests: no time-outs of hypothesis's own, for how long an example takes depends on what
else the machine does; and nothing written beside the tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quire", deadline=None, database=None)
settings.load_profile("quire")
