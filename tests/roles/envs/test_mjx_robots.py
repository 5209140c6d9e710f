"""Barkour in adapter mjx. ShadowHand is not there: MJX compiles it for many minutes."""

import pytest

import warp_cache  # noqa: F401
from bodies_mjx import apart
from bodies_robots import barkour_by_two_adapters
from gmi_drl.roles.envs import check_env


def test_barkour_is_there_and_shadow_hand_is_not():
    assert check_env("Barkour-v0", "mjx") == []
    (fault,) = check_env("ShadowHand-v0", "mjx")
    assert "adapter mjx has" in fault


@pytest.mark.slow
@pytest.mark.timeout(300)  # compiling, on a busy machine
def test_barkour_steps_as_in_adapter_warp_through_ends():
    apart(barkour_by_two_adapters)
