"""Runs one method on many agents, as commands, at the pace that its caller asked for."""
