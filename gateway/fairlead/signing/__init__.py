"""Signed commands: what is signed, the keys, and the signatures. The caller signs, and an agent with trusted keys
verifies; the gateway between them only carries the octets and never needs a key."""
