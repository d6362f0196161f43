"""Other people's methods, one a file with `run(model, clients)`: examples for adapters of your own."""
