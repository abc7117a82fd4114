"""The auditor and the workers."""
