"""Audits, and what is at risk."""
