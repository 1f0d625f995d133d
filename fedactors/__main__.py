"""``python -m fedactors`` is the command ``fedactors``."""

import sys

from fedactors.command_line.main import main

if __name__ == "__main__":
    sys.exit(main())
