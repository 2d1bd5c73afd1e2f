"""Data sets that the repository makes itself: digits, photographs of digits, toys."""
