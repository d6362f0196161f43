"""Apps for Flower: written, signed, and handed to a SuperLink with their signatures."""
