"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kernel import check
from tests.kernel.registry import Kernel

Record = Callable[[Kernel, check.Verdict], None]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Keep the errors of a verdict for the summary."""

    def keep(kernel: Kernel, verdict: check.Verdict) -> None:
        rows = [(c.dtype, c.name, c.units, c.share, kernel.name) for c in verdict.comparisons]
        request.node.user_properties.append(("errors", rows))

    return keep
