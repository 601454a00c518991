"""The worker of a checkout: the same as `mulligan worker`."""

import sys

from mulligan.cli.app import main

if __name__ == "__main__":
    sys.argv[1:1] = ["worker"]
    main()
