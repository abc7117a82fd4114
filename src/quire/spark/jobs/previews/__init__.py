"""What a dry run of a job reports."""
