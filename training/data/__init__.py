"""One reader per data set, downloads with checksums, and batched augmentation."""
