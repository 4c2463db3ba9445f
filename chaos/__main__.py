"""`python -m chaos`: see `chaos.commands`."""

import sys

from chaos.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
