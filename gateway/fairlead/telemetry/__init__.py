"""Metrics, traces and logs of one node: counters and histograms, spans and their export, command timings, and log
lines.
"""
