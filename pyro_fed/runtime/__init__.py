"""The round loop: from settings to InferenceData, with schedules, executors and messages."""
