"""Runs that are cut short: how Ctrl-C is noticed, and what is returned."""
