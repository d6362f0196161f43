"""What is checked of a model before anything is run: its sites, its plates, and whether it splits over rows."""
