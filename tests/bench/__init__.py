"""Benchmarks and counts: ratios taken in one run. ``python -m tests.bench`` lists them."""
