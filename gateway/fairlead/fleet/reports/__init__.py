"""What the nodes report of themselves in their rows, as values that the operator reads too."""
