"""Ways in which a kernel will be called: `table.py` lists them, each has a module."""
