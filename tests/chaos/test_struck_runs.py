"""Runs that are struck by random signals and resumed lose nothing and never wait for ever."""

import pytest

from story import Story

STRIKES = 3  # of each run


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2, 5])  # a run of each kind
def test_a_run_that_is_struck_again_and_again_comes_to_its_end(tmp_path, seed):
    Story(tmp_path, seed).strike(STRIKES)
