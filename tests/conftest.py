"""Settings for all tests.

Hypothesis has no deadlines, because the duration of an example depends on the machine's load.
Nothing is written beside the tests. QUIRE_EXAMPLES is the number of examples of tests that do not
set it themselves. Bookies are forked, which saves the processor time of their imports.
"""

from __future__ import annotations

import os

from hypothesis import settings

from tests.support.processes.forked_server import fork_bookies

# What is configured on this machine is not for tests.
os.environ["QUIRE_CONFIG"] = ""

EXAMPLES = int(os.environ.get("QUIRE_EXAMPLES", "30"))
settings.register_profile("quire", deadline=None, database=None, max_examples=EXAMPLES)
settings.load_profile("quire")
fork_bookies()
