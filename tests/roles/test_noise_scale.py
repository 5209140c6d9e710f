"""The gradient noise scale: right where it is known, the same however many GMIs and on a GPU."""

import io

import pytest
import torch

import bodies_noise as bodies
from bodies_noise import NOISE_SCALE, Trains
from device_only import RecordedPool
from gmi_drl.comm import solo_group
from gmi_drl.roles.optimizers.noise_scale import NoiseScale
from ranks import run_ranks

KINDS = ("rows", "segments", "replay")


def test_it_is_what_two_batch_sizes_say():
    scale = NoiseScale()
    assert scale.value is None
    for _ in range(3):  # |G|^2 = 2 and tr(Sigma) = 50
        scale.update(square=2 + 50 / 10, product=2.0, samples=10)
        assert scale.value == pytest.approx(25)
    for strange in (float("nan"), float("inf")):
        scale.update(square=strange, product=2.0, samples=10)
        scale.update(square=2.0, product=strange, samples=10)
    assert scale.value == pytest.approx(25)


def test_a_gradient_without_noise_has_none_and_noise_without_a_gradient_has_no_scale():
    exact, lost = NoiseScale(), NoiseScale()
    exact.update(square=2.0, product=2.0 + 1e-9, samples=10)
    lost.update(square=2.0, product=-0.1, samples=10)
    assert exact.value == 0.0
    assert lost.value is None


def test_parts_are_averaged_before_they_are_divided():
    scale = NoiseScale()
    for n in range(400):  # a product that is negative every other time, and 1 in the mean
        scale.update(square=6.0, product=4.0 if n % 2 else -2.0, samples=10)
    assert scale.value == pytest.approx(50, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gmis", [1, 2, 4])
def test_it_is_right_and_the_same_on_all_gmis(kind, gmis):
    # Averages of the last twenty updates or so: their own deviation is below 3 %.
    if gmis == 1:
        (found,) = [bodies.noise_scales(solo_group(), kind, 120)]
    else:
        found, *others = run_ranks(bodies.noise_scales, gmis, kind, 120)
        assert all(other == found for other in others)
    assert found[-1] == pytest.approx(NOISE_SCALE, rel=0.1)


@pytest.mark.parametrize("how", [{"static": True}, {"static": True, "pool": RecordedPool}])
def test_the_way_of_a_gpu_gives_the_same(how):
    host = Trains("rows", solo_group(), epochs=2)
    how = {name: value() if callable(value) else value for name, value in how.items()}
    device = Trains("rows", solo_group(), epochs=2, **how)
    for _ in range(4):
        ours, its = (trains.update()["noise_scale"] for trains in (host, device))
        assert ours == its
    device.learner.close()


class Two:
    """A group as of two ranks, of which the other brings the same."""

    size, rank = 2, 0

    def bucket(self, *args):
        reducer = solo_group().bucket(*args)
        reducer.size = 2
        return reducer


@pytest.mark.parametrize("pool", [None, RecordedPool])
def test_captured_work_shares_the_norm_of_its_own_gradient(pool):
    trains = Trains("rows", Two(), epochs=2, static=True, pool=pool and pool())
    for _ in range(3):
        assert trains.update()["noise_scale"] == pytest.approx(0.0, abs=1e-3)
    trains.learner.close()


def state(trains):
    return trains.learner.noise.scale.state_dict()


@pytest.mark.parametrize("kind", ["rows", "segments"])
def test_later_epochs_do_not_count(kind):
    once = Trains(kind, solo_group())
    thrice = Trains(kind, solo_group(), epochs=3, factors=[1.0] * 4 + [100.0] * 8)
    for trains in (once, thrice):
        trains.update()
    assert state(once) == state(thrice)
    assert state(once)["trace"] > 0


def test_of_a_round_of_many_steps_the_first_twelve_count():
    found = []
    for last in (1.0, 100.0):
        factors = [1.0] * 12 + [last] * 52
        trains = Trains("replay", solo_group(), factors=factors, updates_per_row=0.25)
        trains.update()
        assert trains.learner.updates == 64
        found.append(state(trains))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_gmi_and_one_gradient_step_have_none(kind):
    how = {"updates_per_row": 1 / 256} if kind == "replay" else {"minibatches": 1, "epochs": 3}
    trains = Trains(kind, solo_group(), **how)
    assert [trains.update()["noise_scale"] for _ in range(5)] == [None] * 5


def test_two_gmis_need_but_one_gradient_step():
    trains = Trains("rows", Two(), minibatches=1)
    assert trains.update()["noise_scale"] is not None


def saved(state):
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


@pytest.mark.parametrize("kind", ["rows", "segments"])
def test_what_is_gone_on_with_reports_the_same_bits(kind):
    whole, resumed = (Trains(kind, solo_group()) for _ in range(2))
    for _ in range(5):
        whole.update()
    resumed.learner.load_state_dict(saved(whole.learner.state_dict()))
    resumed.learner.generator.set_state(whole.learner.generator.get_state())
    resumed.drawn.set_state(whole.drawn.get_state())
    for _ in range(5):
        assert resumed.update() == whole.update()


def test_an_update_that_a_new_group_cut_short_does_not_count():
    trains, other = (Trains("rows", solo_group()) for _ in range(2))
    trains.batch["observation"].copy_(bodies.samples(torch.Generator().manual_seed(5)))
    shuffles = trains.learner.generator.get_state()
    trains.learner.update(trains.batch)
    trains.learner.generator.set_state(shuffles)
    for one in (trains, other):
        one.learner.connect(solo_group())
        one.update()
    assert state(trains) == state(other)
