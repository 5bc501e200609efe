"""Proof that a derivative is right: a problem, maps, directions, a comparison, findings, evidence."""
