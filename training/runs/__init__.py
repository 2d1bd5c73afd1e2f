"""A run's folder: checkpoints, log, provenance, result."""
