"""A partitioned plate of groups whose rows are in plates nested in it: counties with houses."""
