"""The rules of a diagnosis: what kind of mistake the entries of two Jacobians show, a table of them.

Each rule is a small function of a case. It says what it sees, with `{where}` for the part of the Jacobian,
and how sure it is; the table says what to look at then, and which rules explain the same thing better.
"""
