"""Contents: octets that are stored once and given to many commands as their input. `content_cache` has those that this
node needs, and `content_keeper` stores them and keeps those that are referred to."""
