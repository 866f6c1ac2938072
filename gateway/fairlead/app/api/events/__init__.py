"""The operations on events, and their documents."""
