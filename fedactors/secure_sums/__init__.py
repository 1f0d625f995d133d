"""secure_sums."""
