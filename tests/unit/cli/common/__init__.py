"""What all commands share: arguments, errors, input, output, questions and texts."""
