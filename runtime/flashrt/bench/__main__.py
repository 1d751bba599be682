"""``python -m flashrt.bench NAME``: run one measurement; without a name, list them."""

from __future__ import annotations

import sys

from flashrt.bench import op

MEASUREMENTS = {"op": op}


def main(arguments: list[str]) -> int:
    """Hand the arguments to the measurement's own main."""
    if not arguments or arguments[0] not in MEASUREMENTS:
        print("usage: python -m flashrt.bench NAME [options]\n")
        for name, module in MEASUREMENTS.items():
            print(f"  {name:<8}{(module.__doc__ or '').strip().splitlines()[0]}")
        return 0 if not arguments else 2
    return int(MEASUREMENTS[arguments[0]].main(arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
