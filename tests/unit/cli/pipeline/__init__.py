"""Commands that start Spark jobs, without Spark."""
