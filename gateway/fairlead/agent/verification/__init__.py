"""Signed commands at the agent: the keys that it trusts, and the check of each command and its input against them."""
