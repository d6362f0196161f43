"""Ctrl-C in a run: how it is noticed, and what such a run returns."""
