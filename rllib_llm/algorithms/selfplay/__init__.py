"""Self-play: one learner, frozen snapshots of it, role-conditioned advantages."""
