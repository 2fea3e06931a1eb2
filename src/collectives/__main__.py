"""``python -m collectives``: the command line."""

import sys

from collectives.cli import main

if __name__ == "__main__":
    sys.exit(main())
