"""What is kept of commands that have ended."""
