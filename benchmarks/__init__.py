"""Measurements: `python -m benchmarks.<name>` prints a table of ratios. None of them is a test."""
