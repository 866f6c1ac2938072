"""Who an agent is: its key, the credential that binds the key to an id, the proof that it holds the key, and the tokens
that let a new agent enrol."""
