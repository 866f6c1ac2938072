"""LinkOperations: `step` decides the next step of one (pure), and `runner` carries it out."""
