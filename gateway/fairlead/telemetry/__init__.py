"""Metrics, traces and logs of one node: counters and histograms, spans and their export, timings of commands, and log
lines.
"""
