"""Benchmarks, run from the checkout's root: `python -m benchmarks.speed.gradients`; README.md lists them."""
