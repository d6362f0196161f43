"""What privacy costs, and what messages give away."""
