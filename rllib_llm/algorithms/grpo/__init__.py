"""GRPO: group-relative credit on the driver, a clipped policy loss, no critic."""
