"""Carries out the canary of a new pod template, and keeps the template that was accepted before."""
