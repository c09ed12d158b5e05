"""`python -m ane` is the command `ane`."""

import sys

from ane.cli import main

sys.exit(main())
