"""Data sets that the repository makes itself: drawn digits and rendered toys."""
