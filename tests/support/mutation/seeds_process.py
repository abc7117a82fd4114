"""The process that runs seeds of the simulator in a copy of the source tree.

Its argument is a list of pairs of workload and seed, as JSON. It prints a line when a run begins.
It ends at the first broken invariant, which it prints. If there is none, it prints the processor
time of the longest run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from tests.support.mutation.processes import check_imports_from, restrain

CPU_MAX_S = 60.0
"""Seconds of processor time that one run may take.

A simulated run waits for nothing, so the load of the machine does not count.
"""
CLOCK_MAX_S = 900
"""Seconds that one run may take by the clock.

This ends only a run whose threads wait for each other.
"""

BEGINS, BROKEN, PASSED = "begins: ", "broken: ", "passed: "


def main() -> int:
    restrain(CLOCK_MAX_S)
    check_imports_from(os.environ["QUIRE_MUTATION_ROOT"])
    from quire_simulator import simulate

    longest_s = 0.0
    for workload, seed in json.loads(sys.argv[1]):
        print(f"{BEGINS}{json.dumps([workload, seed])}", flush=True)
        signal.alarm(CLOCK_MAX_S)
        signal.setitimer(signal.ITIMER_PROF, CPU_MAX_S)  # Its signal ends this process.
        begin = time.process_time()
        try:
            failure = simulate(seed, workload).failure
            what = f"{failure.invariant}: {failure.what}" if failure is not None else ""
        except Exception as error:  # noqa: BLE001 - the checks call the code, which may be broken
            what = f"the simulator ended: {error!r}"
        longest_s = max(longest_s, time.process_time() - begin)
        if what:
            print(f"{BROKEN}{json.dumps([workload, seed, what[:500]])}", flush=True)
            return 0
    print(f"{PASSED}{json.dumps(longest_s)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
