"""Single routes."""
