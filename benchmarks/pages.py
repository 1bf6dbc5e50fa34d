"""Write every page that follows from the code and the records in seconds: all but the lessons, which run for minutes.

python benchmarks/pages.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = (
    "benchmarks/reference_pages.py",
    "benchmarks/scheme_page.py",
    "benchmarks/scaling_page.py",
    "benchmarks/which_scheme_page.py",
    "results/evidence_page.py",
)

if __name__ == "__main__":
    for script in SCRIPTS:
        subprocess.run([sys.executable, str(ROOT / script)], cwd=ROOT, check=True)
    changed = subprocess.run(["git", "diff", "--stat", "docs"], cwd=ROOT, check=True, capture_output=True, text=True)
    print(changed.stdout or "every page was up to date")
