"""Decisions about adds: which are acknowledged, in which order, by which quorum.

Start with `pipeline`.
"""
