"""What all storeys agree on: how randomness is seeded, how settings are checked, what a client may be called."""
