"""One reader per data set, in the form in which its authors publish it."""
