"""Bridges to other libraries; each imports its library inside the functions that need it."""
