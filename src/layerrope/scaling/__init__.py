"""Scaling laws: the points, the fits, the compute that a scheme saves, and their report."""
