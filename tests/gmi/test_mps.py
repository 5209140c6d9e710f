"""A GMI under MPS has its share, and finds out in its process when it has not."""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import bodies_mps
import fake_gpus
from gmi_drl import runtime
from gmi_drl.gmi import SliceError
from gmi_drl.gmi.backends import mps
from gmi_drl.gmi.backends.mps.control import Daemon
from mps_clients import CONTEXT, GPU, HALVES, ONE, SHORT, client, prepared, seen
from stops import stopped


@pytest.fixture
def words(monkeypatch, tmp_path):
    """Installs the doubles; called with words of FAKE_MPS it sets them."""
    fake_gpus.install(monkeypatch, tmp_path, ONE)
    return lambda text: monkeypatch.setenv("FAKE_MPS", text)


@pytest.mark.usefixtures("words")
def test_a_gmi_has_its_share_and_nothing_is_left_of_it():
    with prepared() as slices:
        environment = slices.environment(HALVES[1])
        assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
        assert environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
        with client(slices, HALVES[0], bodies_mps.hold) as (_, first, _):
            assert first == (True, 66)
            assert seen(slices, HALVES[1]) == (True, 66)
        assert len(fake_gpus.mps_pids()) == 2  # the daemon and its server
    assert fake_gpus.mps_pids() == []
    slices.release()  # again is fine


def test_shares_are_partitions_where_the_daemon_knows_them(words):
    words("static")
    thirds = [dataclasses.replace(spec, sm_percent=33) for spec in HALVES]
    with prepared(thirds) as slices:
        partitions = {slices.environment(spec)["CUDA_MPS_SM_PARTITION"] for spec in thirds}
        assert len(partitions) == 2
        assert [seen(slices, spec) for spec in thirds] == [(True, 40)] * 2  # 5 chunks of 8
    for percent in (80, None, 5, 11):  # too much; no share; less than a chunk; nearer to two
        others = [dataclasses.replace(spec, sm_percent=percent) for spec in HALVES]
        with prepared(others) as slices:
            assert "CUDA_MPS_SM_PARTITION" not in slices.environment(others[0])
            pairs = 66 * (percent or 100) // 100  # the double rounds down to pairs of SMs
            assert seen(slices, others[0]) == (True, 2 * pairs)
    larger = fake_gpus.topology(sm_count=264)  # than the daemon has chunks for
    with prepared(HALVES, larger) as slices:
        assert "CUDA_MPS_SM_PARTITION" not in slices.environment(HALVES[0])


@pytest.mark.parametrize(
    ("sm_count", "capability"), [(114, (9, 0)), (132, (9, 0)), (148, (10, 0)), (108, (8, 0))]
)
def test_a_partition_is_never_much_less_than_the_share_it_stands_for(sm_count, capability):
    device = fake_gpus.device(capability=capability, sm_count=sm_count)
    size = mps.chunk_sms(device)
    partitioned = set()
    for count in range(1, 17):
        gmis = fake_gpus.specs("mps", ONE, count, sm_percent=100 // count)
        if chunks := mps.partition(gmis, device, (13, 1)):
            partitioned.add(count)
            assert len(chunks) == count
            assert sum(chunks.values()) * size <= sm_count
            assert min(chunks.values()) * size >= 0.9 * (sm_count * (100 // count) // 100)
    assert {1, 2} <= partitioned
    if sm_count == 132:
        assert partitioned == {1, 2, 3, 4, 5, 8, 15, 16}
        eight = fake_gpus.specs("mps", ONE, 8, sm_percent=12)
        assert mps.partition(eight, device, (13, 1)) == dict.fromkeys(range(8), 2)


@pytest.mark.parametrize(
    ("cuda", "asked"), [((13, 0), False), ((12, 9), False), ((13, 1), True), (None, True)]
)
def test_partitions_are_asked_for_from_cuda_13_1_on(words, monkeypatch, cuda, asked):
    words("static")  # it would have them
    options, launch = [], Daemon._launch

    def noted(daemon, control, given):
        options.append(given)
        launch(daemon, control, given)

    monkeypatch.setattr(Daemon, "_launch", noted)
    machine = dataclasses.replace(ONE, cuda=cuda)
    with prepared(HALVES, machine) as slices:
        assert ("CUDA_MPS_SM_PARTITION" in slices.environment(HALVES[0])) == asked
    assert options == [["-d", "-S"] if asked else ["-d"]]


@pytest.mark.usefixtures("words")
def test_one_daemon_for_each_gpu(monkeypatch, tmp_path):
    machine = fake_gpus.topology(2)
    fake_gpus.install(monkeypatch, tmp_path, machine)
    gmis = fake_gpus.specs("mps", machine, per_gpu=2, sm_percent=50)
    with prepared(gmis, machine) as slices:
        pipes = [slices.environment(spec)["CUDA_MPS_PIPE_DIRECTORY"] for spec in gmis]
        assert len(set(pipes)) == 2
        assert pipes[0] == pipes[1]
        assert len(fake_gpus.mps_pids()) == 2
        longest = max(len(f"{pipe}/control_privileged") for pipe in pipes)
        assert longest + len("/tmp") - len(os.environ["XDG_RUNTIME_DIR"]) <= 107


@pytest.mark.usefixtures("words")
def test_variables_of_the_user_do_not_reach_the_daemon_nor_its_clients(monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", "GPU-1/AA")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    gmis = fake_gpus.specs("mps", ONE, sm_percent=50)  # without a limit of memory
    with prepared(gmis) as slices:
        assert seen(slices, gmis[0]) == (True, 66)
        (pid, *_) = fake_gpus.mps_pids()
        with open(f"/proc/{pid}/environ") as file:
            variables = dict(v.partition("=")[::2] for v in file.read().split("\0"))
    assert variables["CUDA_VISIBLE_DEVICES"] == GPU.uuid
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in variables


def test_a_client_that_silently_has_no_mps_is_an_error_with_the_log(words):
    words("dies=2")  # the first is the question whether it is well
    with prepared() as slices:
        assert "806" in seen(slices)  # it dies while the process connects
        error = seen(slices)  # and then nobody answers
    assert "GmiSpec 0: the process is no MPS client" in error
    assert "control.log: " in error


def test_another_share_than_the_specs_is_an_error(words):
    words("percentage=20")
    with prepared() as slices:
        assert "sm_percent=50, 66 of 132 SMs; CUDA gives 26" in seen(slices)
    words("")
    with prepared() as slices:
        assert "CUDA gives 132" in seen(slices, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")
        assert "LIMIT is 0=1M" in seen(slices, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1M")
        assert "(100): no device is visible" in seen(slices, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("partition", [False, True])
def test_a_share_that_is_rounded_is_told_and_another_one_refused(monkeypatch, partition):
    """66 SMs are asked for, or a partition of 64."""
    told = []
    monkeypatch.setattr(runtime, "emit", lambda record: told.append(record["message"]))
    monkeypatch.setenv("CUDA_MPS_SM_PARTITION", "GPU-1/AA" if partition else "")
    asked, silent = (64, {64}) if partition else (66, {64, 65, 66, 67, 68})
    for sms in range(133):
        told.clear()
        if abs(sms - asked) > 8:
            with pytest.raises(SliceError, match=f"{asked} of 132 SMs; CUDA gives {sms}. Some"):
                mps._verify_share(HALVES[0], GPU, sms)
        else:
            mps._verify_share(HALVES[0], GPU, sms)
        noted = 0 < abs(sms - asked) <= 8 and sms not in silent
        assert len(told) == noted
        if noted:
            assert f"CUDA gives {sms}. That is what it computes on" in told[0]


def test_a_daemon_that_rounds_to_groups_of_sms_loses_nobody(words):
    words("granule=8")
    with prepared() as slices:
        assert seen(slices) == (True, 64)
        quarter = dataclasses.replace(HALVES[0], sm_percent=12)
        assert seen(slices, quarter, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="12") == (True, 8)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (806, "MPS_RPC_FAILURE (806): the call to the MPS server failed"),
        (808, "(808): the GPU has no room for another MPS client. Use fewer GMIs"),
        (809, "(809): the GPU has no connections left"),
        (810, "(810): the MPS server has ended this client"),
    ],
)
def test_errors_of_mps_are_told_in_words(words, code, text):
    words(f"lost={code}")
    with prepared() as slices:
        assert text in seen(slices)


def test_a_client_waits_until_the_server_takes_it_and_not_for_ever(words, monkeypatch):
    words("busy=3")
    with prepared() as slices:
        assert seen(slices) == (True, 66)
    words("lost=807")
    with prepared() as slices:
        monkeypatch.setattr(mps, "_LET_IN", timedelta(seconds=0.3))
        for name, value in slices.environment(HALVES[0]).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(mps, "verify_cores", lambda *_: None)
        with pytest.raises(SliceError, match=r"\(807\): the MPS server takes no clients now"):
            mps.MpsBackend().verify(HALVES[0], GPU)


@pytest.mark.usefixtures("words")
def test_a_fenced_client_is_let_go_before_it_is_killed():
    release = CONTEXT.Event()
    with (
        prepared() as slices,
        client(slices, HALVES[0], bodies_mps.hold_until, release) as (process, _, receive),
        client(slices, HALVES[1], bodies_mps.hold_until, release) as (_, _, other),
    ):
        slices.fence_all([(HALVES[0], process.pid), (HALVES[0], os.getpid())])  # of one client
        release.set()
        assert receive.recv() == 810
        assert other.recv() == 0


def test_who_comes_while_a_client_is_terminated_at_work_is_let_in_after_it(words):
    words("ending=1,slow=0.05")
    with (
        prepared() as slices,
        client(slices, HALVES[0], bodies_mps.work, 60.0) as (process, _, receive),
    ):
        assert receive.recv() == "at work"
        with ThreadPoolExecutor(1) as pool:
            fence = pool.submit(slices.fence_all, [(HALVES[0], process.pid)])
            assert receive.recv() == 810  # it is being terminated
            assert seen(slices, HALVES[1]) == (True, 66)
            fence.result()
        daemon = slices._daemons.of[GPU.uuid]
        assert "turned away" in daemon.logs.joinpath("server.log").read_text()


@pytest.mark.usefixtures("words")
def test_a_daemon_that_hangs_holds_up_only_the_first_of_its_fences(monkeypatch):
    monkeypatch.setattr(mps, "_FENCE", SHORT)
    monkeypatch.setattr(mps, "_AGAIN", SHORT / 2)
    terminated, terminate = [], Daemon.terminate

    def noted(daemon, pids, timeout):
        terminated.append([])
        terminated[-1] = terminate(daemon, pids, timeout)

    monkeypatch.setattr(Daemon, "terminate", noted)
    with prepared() as slices, client(slices, HALVES[0], bodies_mps.hold) as (process, _, _):
        with stopped(*fake_gpus.mps_pids()):
            for spec in HALVES:
                slices.fence_all([(spec, process.pid)])
            assert terminated == [[]]  # the second is not tried
        for name in ("_FENCE", "_AGAIN"):
            monkeypatch.setattr(mps, name, timedelta(seconds=30))
        for spec in HALVES:  # it is well again, and asked as before
            slices.fence_all([(spec, process.pid)])
        assert terminated == [[], [process.pid], [process.pid]]
