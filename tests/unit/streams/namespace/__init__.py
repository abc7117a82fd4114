"""Streams in a namespace: their nodes, settings, lists, deletion and renaming."""
