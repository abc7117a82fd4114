"""Quire and Apache BookKeeper in one cluster: each reads and repairs what the other wrote."""
