"""A gateway and a link that a test scripts, and agents in processes of their own, for the tests of the agent SDK."""
