"""`make lock`: resolves pyproject.toml into requirements.lock, with hashes and without the address of any registry.

Needs `uv` in the environment (`pip install uv`); it is not a dependency of anything else.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ("runway-contracts", "runway-sdk")


def main() -> None:
    """Writes both lock files."""
    text = (ROOT / "pyproject.toml").read_text()
    kept = "\n".join(line for line in text.splitlines() if line.strip().strip('",') not in OURS)
    flags = ["--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"]
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "pyproject.toml"
        project.write_text(kept)
        for source, target in (
            (project, ROOT / "requirements.lock"),
            (ROOT / "libs/contracts/generator.in", ROOT / "libs/contracts/generator.lock"),
        ):
            extra = ["--extra", "dev"] if source == project else []
            subprocess.run(
                [sys.executable, "-m", "uv", "pip", "compile", str(source), *extra, *flags, "-o", str(target)], check=True
            )


if __name__ == "__main__":
    main()
