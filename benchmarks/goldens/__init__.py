"""Frozen results of runs, so that a change of the code's form can be shown to lose nothing; see `__main__`."""
