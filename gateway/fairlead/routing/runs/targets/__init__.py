"""What a run has under way: its targets, and how many more of them may be started."""
