"""`python -m tfdp`, for environments whose scripts are not on the path."""

import sys

from tfdp.cli import main

if __name__ == "__main__":
    sys.exit(main())
