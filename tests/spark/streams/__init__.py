"""Streams and topics as source and sink of Spark."""
