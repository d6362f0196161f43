"""Answers against reference posteriors and against other methods."""
