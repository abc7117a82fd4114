"""Autorecovery, operators' jobs and metadata in simulated clusters."""
