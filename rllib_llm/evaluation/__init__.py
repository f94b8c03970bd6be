"""What trained policies achieve, and what a team owes to each of its members."""
