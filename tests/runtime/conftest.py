"""A runtime for the tests of a file; those about starting and ending it have their own."""

import pytest

from gmi_drl import runtime


@pytest.fixture(scope="module")
def running():
    runtime.init()
    yield
    runtime.shutdown()


@pytest.fixture
def start(running):
    """Starts actors that are gone after the test: `start(Class, *args, option=...)`."""
    started = []

    def start_one(cls, *args, **options):
        handle = runtime.remote(cls).options(**options).remote(*args)
        started.append(handle)
        return handle

    yield start_one
    runtime.kill(started)
