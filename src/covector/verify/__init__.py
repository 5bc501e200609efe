"""Decides whether a derivative is right: a problem, two maps, looks, a judge, a record."""
