"""What messages tell of rows."""
