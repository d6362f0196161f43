"""What one does with results: compare, predict, draw, report."""
