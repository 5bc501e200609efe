"""`python -m covector` is the command `covector`."""

import sys

from covector.cli import main

if __name__ == "__main__":
    sys.exit(main())
