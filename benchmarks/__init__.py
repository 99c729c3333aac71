"""Measurements of time and memory: `python -m benchmarks.<name>` prints a table. None of them is a test."""
