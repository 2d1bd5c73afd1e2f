"""Models: which versions are on disk, which are loaded, and which serves a request."""
