"""LinkOperations: the next step of one (pure), and the runner that carries it out."""
