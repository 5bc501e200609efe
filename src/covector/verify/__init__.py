"""Decides whether a linear map is the derivative: a problem, two maps, looks, a judge, a record."""
