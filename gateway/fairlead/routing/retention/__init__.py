"""How long and how much of the results of commands that have ended is kept."""
