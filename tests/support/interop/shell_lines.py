"""The lines of Apache's BookieShell, whose results moved in 4.18 from the text to attributes.

4.17 prints `ledgerID: 7`. 4.18 logs `log entry` with the attribute `ledgerId=7`, which the pattern
of our tests prints behind the message. `in_4_17s_words` gives both the same form, so that a test
can look for the facts in the output of either.
"""

from __future__ import annotations

import re

RULES = [
    (re.compile(f"^{pattern}$", re.MULTILINE), words)
    for pattern, words in (
        (r"bookie \{bookieAddr=(.*)\}", r"\1"),
        (r"Metadata Service Uri: InstanceId \{metadataServiceUriUnchecked=(.*), "
         r"readInstanceId=(.*)\}", r"Metadata Service Uri: \1 InstanceId: \2"),
        (r"(BookiedId|Endpoint|Protocol|Auth|Extensions) \{\w+=(.*)\}", r"\1: \2"),
        (r"Address \{host=(.*), port=(.*)\}", r"Address: \1 : \2"),
        (r"log entry \{value=(\{(?:\n.+)*?\n\})\}", r"\1"),
        (r"(?:log entry|ledgerID) \{ledgerId=(\w+)\}", r"ledgerID: \1"),
        (r"log entry \{ledgerId=(\w+), metadata=(.*)\}", r"ledgerID: \1\n\2"),
        (r"log entry \{metadata=(.*)\}", r"\1"),
        (r"Entry \{entryId=(\d+), entrySize=(\d+), ledgerId=(\w+)\}",
         r"--------- Lid=\3, Eid=\1, EntrySize=\2 ---------"),
        (r"Under replicated ledger count \{count=(\d+)\}", r"Under replicated ledger count: \1"),
        (r"No Ledger is being recovered", r"\t No Ledger is being recovered."),
        (r"Free disk space info \{bookie=(.*), free=(.*), total=(.*)\}",
         r"\1: \tFree: \2\tTotal: \3"),
        (r"Total (free disk space|disk capacity) in the cluster \{\w+=(.*)\}",
         r"Total \1 in the cluster:\t\2"),
        (r"(\d+ entries written to ledger \d+) \(lastEntryId (\d+)\)", r"\1. Last entry Id \2"),
        (r"((?:Successfully set )?LostBookieRecoveryDelay value in ZK) \{delay=(\d+)\}",
         r"\1: \2"),
    )
]  # fmt: skip


def in_4_17s_words(said: str) -> str:
    for pattern, words in RULES:
        said = pattern.sub(words, said)
    return said
