"""GRPO: group-relative advantages, a clipped policy loss, no critic."""
