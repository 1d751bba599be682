"""Measurements that users run: ``python -m flashrt.bench op`` and the like.

Nothing printed is stored or assumed; each number is measured by the run that prints it.
"""
