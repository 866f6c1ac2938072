"""The file of roles: reads it, strictly."""
