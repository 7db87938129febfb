"""`pytest -p cuda_fake.plugin tests/gpu` runs the GPU tests on a fake driver, to see that they can run; much is left out."""

from __future__ import annotations

import pytest
from cuda_fake.fake_driver import FakeDriver

FAKE = FakeDriver().install()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    print(f"\n{len(FAKE.launches)} launches, errors: {FAKE.errors}, unknown: {sorted(set(FAKE.unknown))}", flush=True)
