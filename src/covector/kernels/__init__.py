"""Whether a kernel is right: against a reference, in its own precision, in every way it will be called."""
