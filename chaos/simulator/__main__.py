"""`python -m chaos.simulator`: see `chaos.simulator.command`."""

import sys

from chaos.simulator.command import main

if __name__ == "__main__":
    sys.exit(main())
