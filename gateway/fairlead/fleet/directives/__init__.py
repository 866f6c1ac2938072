"""What the operator tells all nodes through Redis. Each directive expires by itself, so that none outlives the
operator."""
