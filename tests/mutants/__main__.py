"""`python -m tests.mutants`: 1 when one survived, 2 when a catcher fails without any."""

import sys

from tests.mutants.run import main

sys.exit(main())
