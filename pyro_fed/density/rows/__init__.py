"""Rows of data: a model's arguments by rows, batches, and rows of plates nested in the partitioned plate."""
