"""Requests and answers of a bookie, and the limits of its connections."""
