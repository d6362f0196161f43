"""The rows of data: a model's arguments by rows, batches of them, and rows of plates nested in the partitioned one."""
