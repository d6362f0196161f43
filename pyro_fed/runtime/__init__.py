"""The only round loop: from settings to InferenceData, with who works, where the work is done and what travels."""
