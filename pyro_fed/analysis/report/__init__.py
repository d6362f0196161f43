"""Results for readers: tables in the terminal, one HTML page."""
