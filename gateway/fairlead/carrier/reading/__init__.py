"""How much of each connection is read, and when: the scheduler, its accounts, and the memory of incomplete messages."""
