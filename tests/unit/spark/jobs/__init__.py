"""Parts of the jobs that need no JVM."""
