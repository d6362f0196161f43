"""Modes: those that draws miss or have too few draws of, and how far a point is from one."""
