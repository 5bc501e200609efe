"""What people see: the report as data, in a terminal, as a page, and as code that reproduces it."""
