"""Generates the Python stubs of `proto/` into this distribution. Authoritative for how: nothing here is edited by hand.

Run by the generator's own environment (`generator.lock`), because stubs made by grpcio-tools 1.76 import on protobuf 6 and
7 alike, and newer ones refuse 6. `--check` writes elsewhere and compares, so that a stale stub fails the tests.
"""

import argparse
import filecmp
import os
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = ("runway", "buf")


def generate(out: Path) -> None:
    """Writes every stub of `proto/` below `out`, with package markers."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    proto = ROOT / "proto"
    wellknown = Path(protoc.__file__).parent / "_proto"
    files = sorted(str(path.relative_to(proto)) for path in proto.rglob("*.proto"))
    outputs = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(["protoc", f"-I{proto}", f"-I{wellknown}", *outputs, *files]):
        sys.exit("the protos do not compile")
    for package in PACKAGES:
        (out / package / "py.typed").write_text("")
        for folder in [out / package, *(p for p in (out / package).rglob("*") if p.is_dir())]:
            (folder / "__init__.py").write_text("")


def listing(root: Path) -> set[str]:
    """Files of the generated packages below root, without caches."""
    found: set[str] = set()
    for package in PACKAGES:
        found |= {str(p.relative_to(root)) for p in (root / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    return found


def main() -> None:
    """Generates in place, or checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is committed, change nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        generate(out)
        if check:
            stale = {name for name in listing(out) & listing(HERE) if not filecmp.cmp(out / name, HERE / name, shallow=False)}
            stale |= listing(out) ^ listing(HERE)
            if stale:
                sys.exit("stale stubs, run `make gen`:\n  " + "\n  ".join(sorted(stale)))
            return
        for package in PACKAGES:
            shutil.rmtree(HERE / package, ignore_errors=True)
            shutil.copytree(out / package, HERE / package)


if __name__ == "__main__":
    main()
