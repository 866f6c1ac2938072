"""`fairlead run` and `fairlead runs`: one method on many agents."""
