"""Commands that start servers, and their configuration."""
