"""``python -m tests.bench NAME``: run one benchmark; without a name, list them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from tests import bench


def main(arguments: list[str]) -> int:
    """Hand the arguments to the benchmark's own main."""
    modules = (module.name for module in pkgutil.iter_modules(bench.__path__))
    names = sorted(name for name in modules if not name.startswith("_"))
    if not arguments or arguments[0] not in names:
        print("usage: python -m tests.bench NAME [options]\n")
        for name in names:
            module = importlib.import_module(f"tests.bench.{name}")
            print(f"  {name:16} {(module.__doc__ or '').strip().splitlines()[0]}")
        return 0 if not arguments else 2
    module = importlib.import_module(f"tests.bench.{arguments[0]}")
    return int(module.main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
