"""What a run leaves in its folder and at the backends: written, read, locked. On the ground floor beside utilities."""
