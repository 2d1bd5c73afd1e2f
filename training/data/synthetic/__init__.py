"""Data sets that the repository makes itself: digits and toys."""
