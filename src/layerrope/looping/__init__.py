"""Looped language models: their parts, their cost, and decoding one against its own earlier iterations."""
