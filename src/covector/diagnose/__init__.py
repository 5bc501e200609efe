"""Why a check failed: a table of rules over the evidence. Nothing is evaluated here."""
