"""What a bundle promises: its manifest and its preprocessing, shared by all three packages."""
