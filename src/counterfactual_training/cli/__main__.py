"""``python -m counterfactual_training.cli``."""

import sys

from counterfactual_training.cli import main

sys.exit(main())
