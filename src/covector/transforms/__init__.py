"""Functions from functions: one file per verb."""
