"""What clients that lie do to answers, with and without protection."""
