"""Decides whether the pods of a new template serve as well as the others: what is compared, how, and what follows.
Pure."""
