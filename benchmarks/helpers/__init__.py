"""Data, targets and tables that benchmarks share."""
