"""Writing a ledger: from `append` to the acknowledgement.

Read `writer`, `write_handle`, `add_session`, `add_member`.
"""
