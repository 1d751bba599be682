"""Checks of the Metal sources that need no Apple compiler. `python -m tests.lint` runs them all."""
