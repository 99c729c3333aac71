"""The records of a run, in its folder and at the backends: written, read, locked. Ground floor, beside utilities."""
