"""Requests for an approval, and what was decided about them, in Redis."""
