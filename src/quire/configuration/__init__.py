"""What a process is configured to do: every key, and the layers that give it a value."""
