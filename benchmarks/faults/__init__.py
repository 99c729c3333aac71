"""Faults on purpose: `python -m benchmarks.faults` disturbs runs at random, and counts those that survive."""
