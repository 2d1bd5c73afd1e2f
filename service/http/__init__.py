"""HTTP itself: bodies, pictures in them, limits, connections, keys, compression."""
