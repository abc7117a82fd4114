"""The audit: every replica of every ledger is read and compared.

Start with `audit`.
"""
