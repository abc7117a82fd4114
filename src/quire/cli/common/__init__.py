"""What several commands share: options, configuration, output, progress and error messages."""
