"""A short stretch of chaos; `make chaos` is the long one."""

import random

import pytest

from tests.cluster.chaos import run_chaos

SECONDS = 25


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("broker")  # which says what is missing where Kafka cannot run
def test_every_run_ends_right_whatever_happens(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert run_chaos(tmp_path, seed, SECONDS) == []
