"""The requests about access as methods: approvals of commands, and agents that wait for theirs."""
