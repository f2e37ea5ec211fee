"""The modules beside these tests are imported by their names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
