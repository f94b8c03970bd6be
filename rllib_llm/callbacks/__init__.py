"""What people see of a run: metrics, transcripts, progress."""
