"""What a run returns: draws and the record as ArviZ InferenceData."""
