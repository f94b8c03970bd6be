"""What a trained team owes to each of its members."""
