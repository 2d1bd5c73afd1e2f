"""The explain graph: the encoder, and what its routing does in every iteration. No torch here."""
