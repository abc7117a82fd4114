"""For all tests: no time-outs of hypothesis's own, for how long an example takes depends on what
else the machine does; and nothing written beside the tests. QUIRE_EXAMPLES says how many examples
are tried of what does not say so itself."""

from __future__ import annotations

import os

from hypothesis import settings

# What is configured on this machine is not for tests.
os.environ["QUIRE_CONFIG"] = ""

EXAMPLES = int(os.environ.get("QUIRE_EXAMPLES", "50"))
settings.register_profile("quire", deadline=None, database=None, max_examples=EXAMPLES)
settings.load_profile("quire")
