"""The clients' parts in an answer: each client's site there, and its distance from the others."""
