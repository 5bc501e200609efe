"""What is asked of a function and its derivatives: a table of checks, and one run of them."""
