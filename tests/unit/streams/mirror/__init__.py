"""Copies of streams and topics in other clusters."""
