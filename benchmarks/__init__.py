"""Measurements of time and memory: `python -m benchmarks.<name>`. None of them is a test."""
