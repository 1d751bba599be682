"""Benchmarks and counts; each prints ratios taken in one run. ``python -m tests.bench`` lists them."""
