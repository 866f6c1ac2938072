"""Directives: what the operator tells all nodes through Redis. Each expires by itself, so that none outlives the
operator."""
