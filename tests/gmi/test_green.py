"""Green contexts: shares in whole groups, and threads that work on SMs no other has."""

import json
import os
import sys
import types
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fake_gpus
from bodies_green import Where
from gmi_drl import runtime
from gmi_drl.gmi import Gang, GmiDied, SliceError, backend_of
from gmi_drl.gmi.backends import green
from gmi_drl.placement import Device, GmiSpec, Layout, Topology
from gmi_drl.placement.slicing import group_sms, groups_of, num_groups, percent_of

LONG = timedelta(seconds=30)
CORES = tuple(sorted(os.sched_getaffinity(0)))
UUID = "GPU-12345678-1234-1234-1234-123456789abc"


def device(sm_count=132, capability=(9, 0)):
    return Device(0, "gpu", "H", CORES, UUID, sm_count, 80 << 30, capability)


def layout(*percents, on=None):
    gmis = tuple(
        GmiSpec(i, 0, ("simulator", "trainer"), "green", CORES[:1], 4, percent, device_uuid=UUID)
        for i, percent in enumerate(percents)
    )
    return Layout("tcg_ex", Topology((on or device(),)), gmis)


def prepare(layout):
    return backend_of("green").prepare(layout.gmis, layout.topology)


@pytest.fixture(scope="module", autouse=True)
def _running():
    """The fork server, too, must find the fake driver: torch looks for cuda.bindings there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "fake_cuda"))
        runtime.init(["torch", "gmi_drl.gmi", "gmi_drl.placement"])
        yield
        runtime.shutdown()


@pytest.fixture
def gang(tmp_path):
    """Starts a layout on a fake H200, or on a GPU that is other than its topology says."""

    def start(layout, sm_count=132, sm_groups=None, max_restarts=0, **env):
        gpu = {"uuid": UUID, "sm_count": sm_count, "mem_bytes": 80 << 30, "capability": [9, 0]}
        gpu |= {"sm_groups": sm_groups} if sm_groups else {}
        (tmp_path / "gpus.json").write_text(json.dumps([gpu]))
        env |= {"FAKE_CUDA": str(tmp_path / "gpus.json"), "FAKE_CUDA_TORCH": "1"}
        return Gang(layout, Where, env=env, max_restarts=max_restarts)

    return start


@given(groups=st.integers(1, 100), data=st.data())
def test_a_share_of_whole_groups_comes_back_from_its_percent(groups, data):
    count = data.draw(st.integers(1, groups))
    assert groups_of(percent_of(count, groups), groups) == count
    each = groups // count
    assert count * groups_of(percent_of(each, groups), groups) <= groups


def test_the_h200_has_sixteen_groups_and_four_sms_over():
    assert (group_sms(device()), num_groups(device())) == (8, 16)
    assert [groups_of(p, 16) for p in (100, 50, 33, 25, 12, 6, 5, None)] == [
        16,
        8,
        5,
        4,
        2,
        1,
        0,
        16,
    ]
    assert num_groups(device(108, (8, 0))) == 27


def test_the_gmis_of_a_gpu_share_one_process_and_no_sm(gang):
    with gang(layout(50, 25, 25)) as running:
        places = running.call("place", timeout=LONG)
    assert len({pid for pid, *_ in places}) == 1
    assert [len(sms) for _, sms, _ in places] == [64, 32, 32]
    assert len(set().union(*(sms for _, sms, _ in places))) == 128
    assert all(cores == set(CORES[:1]) for *_, cores in places)


def test_a_single_gmi_has_its_share_too(gang):
    with gang(layout(25)) as running:
        assert [len(sms) for _, sms, _ in running.call("place", timeout=LONG)] == [32]


def test_after_a_death_all_come_back_on_sms_of_their_own(gang, tmp_path):
    with gang(layout(50, 25), max_restarts=1) as running:
        before = running.call("place", timeout=LONG)
        running.start_each("die_once", {1: (tmp_path / "died",)})
        assert running.wait(LONG)
        running.results()
        after = running.call("place", timeout=LONG)
    assert {pid for pid, *_ in before}.isdisjoint({pid for pid, *_ in after})
    assert [sms for _, sms, _ in after] == [sms for _, sms, _ in before]


def test_a_gpu_with_fewer_sms_than_the_layout_says_is_found_out(gang):
    with (
        gang(layout(50, 50), sm_count=100) as running,
        pytest.raises(GmiDied, match="sm_percent=50 of 132 SMs; GPU 0 has 100"),
    ):
        running.call("place", timeout=LONG)


# An H100 of 132 SMs was cut into 15 groups of 8.
@pytest.mark.parametrize(
    ("percents", "sms"),
    [
        ((25, 25, 25, 25), [24] * 4),
        ((50, 25, 25), [56, 24, 24]),
        ((31, 31, 31), [40] * 3),  # which want 15 groups: nobody gets less
        ((50,), [64]),
    ],
)
def test_a_chip_of_fewer_groups_is_shared_by_percent_where_they_are_too_few(gang, percents, sms):
    with gang(layout(*percents), sm_groups=15) as running:
        places = running.call("place", timeout=LONG)
    assert [len(its) for _, its, _ in places] == sms
    assert len(set().union(*(its for _, its, _ in places))) == sum(sms)


def test_a_share_of_less_than_one_of_the_groups_that_there_are_is_told_so(gang):
    with (
        gang(layout(*[6] * 16), sm_groups=14) as running,
        pytest.raises(GmiDied, match="0 groups of SMs; 14 of 14 are free on GPU 0"),
    ):
        running.call("place", timeout=LONG)


def test_more_gmis_than_the_chip_has_groups_are_told_so(gang):
    with (
        gang(layout(*[6] * 16), sm_groups=15) as running,
        pytest.raises(GmiDied, match="1 groups of SMs; 0 of 15 are free on GPU 0"),
    ):
        running.call("place", timeout=LONG)


def test_work_on_another_stream_is_found_out(gang):
    with (
        gang(layout(50, 50)) as running,
        pytest.raises(GmiDied, match="works on stream 0x0, which is not of its green context"),
    ):
        running.call("wander", timeout=LONG)


def test_a_stream_says_whether_it_is_green(gang):
    with gang(layout(50)) as running:
        assert running.call("green_streams", timeout=LONG) == [(True, False, False)]


def test_the_double_keeps_events_to_their_context(gang):
    with gang(layout(50)) as running:
        assert running.call("events", timeout=LONG) == [
            ["CUDA_ERROR_INVALID_HANDLE", "CUDA_SUCCESS", "CUDA_SUCCESS"]
        ]


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """The fake driver, started in this process."""
    fake_gpus.install(monkeypatch, tmp_path, fake_gpus.topology())
    from cuda.bindings import driver as module

    assert module.cuInit(0) == (0,)
    return module


def test_the_doubles_handles_are_as_those_of_cuda_bindings(driver):
    """What cuda-bindings 13.5 said with a libcuda that answers all calls."""
    _, device = driver.cuDeviceGet(0)
    assert (type(device), int(device), device == 0) == (driver.CUdevice, 0, False)
    assert not isinstance(device, int)
    with pytest.raises(TypeError):
        (5, 6)[device]
    assert driver.cuDeviceTotalMem(0) == driver.cuDeviceTotalMem(device)
    for wrong in ("0", (0,)):
        with pytest.raises(TypeError, match="an integer is required"):
            driver.cuDeviceTotalMem(wrong)
    assert driver.CUgreenCtx(0)  # NULL is true
    assert driver.CUstream(5) == driver.CUstream(5) != driver.CUevent(5)
    sms = driver.cuDeviceGetDevResource(device, driver.CUdevResourceType(1))[1]
    _, groups, count, _ = driver.cuDevSmResourceSplitByCount(16, sms, 0, 8)
    assert count == 16
    with pytest.raises(TypeError):
        driver.cuDevSmResourceSplitByCount(16, 132, 0, 8)
    with pytest.raises(RuntimeError, match="List is too small"):
        driver.cuDevResourceGenerateDesc(groups, 17)
    assert driver.cuDevSmResourceSplitByCount(1, groups[0], 0, 8)[0].name.endswith("CONFIGURATION")
    _, descriptor = driver.cuDevResourceGenerateDesc(groups[:2], 2)
    _, green = driver.cuGreenCtxCreate(descriptor, device, 1)
    assert type(green) is driver.CUgreenCtx
    assert driver.cuCtxSetCurrent(green)[0].name == "CUDA_ERROR_INVALID_CONTEXT"
    assert driver.cuCtxSetCurrent(driver.cuCtxFromGreenCtx(green)[1]) == (0,)
    assert driver.cuStreamGetGreenCtx(driver.CUstream(0)) == (0, green)
    with pytest.raises(TypeError):
        driver.cuGreenCtxStreamCreate(descriptor, 1, 0)


@pytest.mark.parametrize("broken", ["no bindings", "old driver"])
def test_where_there_are_no_green_contexts_no_stream_is_green(monkeypatch, broken):
    def refuse(stream):
        raise RuntimeError('Function "cuStreamGetGreenCtx" not found')

    old = types.SimpleNamespace(CUstream=int, cuStreamGetGreenCtx=refuse)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", types.SimpleNamespace(driver=old))
    if broken == "no bindings":
        monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert not green.is_green(0x1000)


def test_another_gpu_is_found_out(gang):
    with (
        gang(layout(50, 50), CUDA_VISIBLE_DEVICES="") as running,
        pytest.raises(GmiDied, match=f"GmiSpec 0: device {UUID}") as caught,
    ):
        running.call("place", timeout=LONG)
    assert isinstance(caught.value.__cause__, SliceError)


@pytest.mark.parametrize(
    ("percents", "fault"),
    [
        ((60, 60), r"want 18 groups of 8 SMs \(GMI 0: 9, GMI 1: 9\); it has 16.*sum to 120"),
        ((5,), "GmiSpec 0: sm_percent=5; .* cut into 16 groups of 8 SMs.* Give 7 or more"),
        ((None, 10), "want 17 groups"),
    ],
)
def test_shares_that_cannot_be_had_are_refused_in_the_launcher(percents, fault):
    with pytest.raises(SliceError, match=fault):
        prepare(layout(*percents))


def test_the_environment_shows_one_gpu_and_no_mps():
    prepared = prepare(layout(50))
    environment = prepared.environment(layout(50).gmis[0])
    assert environment["CUDA_VISIBLE_DEVICES"] == UUID
    assert not os.access(environment["CUDA_MPS_PIPE_DIRECTORY"] + "/control", os.F_OK)
    prepared.release()
