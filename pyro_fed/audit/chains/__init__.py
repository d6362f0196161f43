"""Short exact chains that begin at a result's draws: their steps, and where they take its means and SDs."""
