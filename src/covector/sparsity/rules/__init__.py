"""Which elements of its arguments each element of a result reads: a file for each family."""
