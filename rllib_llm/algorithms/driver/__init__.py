"""The parts of a training iteration that run in the driver process."""
