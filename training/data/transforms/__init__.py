"""Pictures made of pictures: augmentation, larger frames, overlapping digits."""
