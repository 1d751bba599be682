"""Turns the specs in specs/ into the Metal kernels in generated/."""
