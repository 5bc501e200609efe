"""The only room that touches torch's private names. `README.md` beside this file lists them.

Whether this torch has them is asked here, before any other file of the engine is loaded: covector works as
a whole, or says what is missing.
"""

from covector._engine import versions

versions.require(versions.NEEDED, "covector")
