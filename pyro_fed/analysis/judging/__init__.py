"""How good a result is: distances, scores, calibration, predictions, and reasons to doubt it."""
