"""Training: data in, checkpoint out."""
