"""Latents inside the partitioned plate: integrated or summed out of a row's likelihood, and drawn afterwards."""
