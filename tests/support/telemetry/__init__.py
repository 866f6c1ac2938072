"""Nodes with their metrics, their platform API and scripted links, for the tests of telemetry."""
