"""Explanations for people: what is missing, why, and what to type.

Start with `explain`.
"""
