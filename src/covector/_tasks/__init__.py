"""Work in blocks: what can be sent to other processes, how executors map it, and where results go."""
