"""Checks of a model before a run: its sites, its plates, and the factorisation of its likelihood over rows."""
