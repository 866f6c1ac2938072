"""Terminals, processes, a relay and a scripted API, for the tests of the command line."""
