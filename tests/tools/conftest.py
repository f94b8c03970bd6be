"""Path setup that lets tool processes import the test tools."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
