"""What each client says of an answer: its site there, and how far it stands from the others."""
