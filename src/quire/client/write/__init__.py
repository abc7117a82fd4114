"""Writing a ledger: from `append` to the acknowledgement.

Read `writer`, `flush` and `add_session`, then `ensemble_changes`. This package may import `cluster`
and `observability`.
"""
