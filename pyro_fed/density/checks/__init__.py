"""Checks of a model before a run: its sites, its plates, and whether it splits over rows."""
