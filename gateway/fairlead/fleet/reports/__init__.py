"""What the nodes report about themselves in their rows, as values that the operator reads too."""
