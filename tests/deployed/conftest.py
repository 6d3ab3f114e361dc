"""Fixtures: roots of Debian."""

import pytest
from debian_roots import LIBRARIES, SYSTEM, debian


@pytest.fixture(scope="session")
def bootable():
    return debian("bootable", f"--include={SYSTEM},{LIBRARIES}")


@pytest.fixture(scope="session")
def base():
    return debian("base")
