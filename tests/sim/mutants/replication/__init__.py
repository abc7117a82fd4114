"""Defects of autorecovery, operators' jobs and metadata."""
