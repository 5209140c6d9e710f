"""A replay of stacks: each frame is kept once, and what is drawn are the stacks that were shown."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from device_only import DeviceOnly
from gmi_drl.roles.algorithms.dqn import DQN
from gmi_drl.roles.envs.protocol import Stacking
from gmi_drl.roles.samples.batch import Batch
from gmi_drl.roles.samples.replay import Limiter, PrioritizedSampler, ReplayBuffer, Storage

CPU = torch.device("cpu")
GAMMA = 0.9
IMAGE = 84 * 84


class Stacked:
    """Environments of stacks of bytes, and each step that they have brought, whole.

    Pixels are few and dark, so that frames are often alike by chance.
    """

    def __init__(self, stacking, places, num_env, seed):
        self.stacking, self.places, self.num_env = stacking, places, num_env
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = []
        self.shown = self._anew()  # [N, places, k, channels]

    def _frames(self, *shape):
        pixels = (self.places, self.stacking.channels)
        return torch.randint(2, (*shape, *pixels), generator=self.generator, dtype=torch.uint8)

    def _anew(self):
        return self._frames(self.num_env).unsqueeze(2).repeat(1, 1, self.stacking.count, 1)

    def make_anew(self, within_episodes):
        """Begins other episodes; some were begun elsewhere, as those of another agent's segment."""
        frames = self._frames(self.num_env, self.stacking.count).transpose(1, 2)
        self.shown = frames if within_episodes else self._anew()

    def batch(self, steps):
        first = len(self.steps)
        for _ in range(steps):
            newest = self._frames(self.num_env).unsqueeze(2)
            after = torch.cat([self.shown[:, :, 1:], newest], 2)
            done = torch.rand(self.num_env, generator=self.generator) < 0.2
            cut = torch.rand(self.num_env, generator=self.generator) < 0.5
            self.steps.append(
                {
                    "raw_observation": self.shown.flatten(1), "next_observation": after.flatten(1),
                    "action": torch.rand(self.num_env, 1, generator=self.generator),
                    "reward": torch.rand(self.num_env, generator=self.generator),
                    "done": done.float(), "terminated": done & ~cut,
                }
            )  # fmt: skip
            self.shown = torch.where(done.view(-1, 1, 1, 1), self._anew(), after)
        new = self.steps[first:]
        return Batch({name: torch.stack([step[name] for step in new]) for name in new[0]})

    def take_back(self, number):
        """Forgets the newest steps, and goes on where they began."""
        self.shown = self.steps[-number]["raw_observation"].view_as(self.shown)
        del self.steps[-number:]

    def transition(self, env, step, n_step):
        """Returns the reward, discount and next observation of a row, found by going through."""
        reward = 0.0
        for last in range(step, min(step + n_step, len(self.steps))):
            it = self.steps[last]
            reward += GAMMA ** (last - step) * float(it["reward"][env])
            if it["done"][env]:
                break
            if last + 1 < len(self.steps):
                following = self.steps[last + 1]["raw_observation"][env]
                if not torch.equal(following, it["next_observation"][env]):
                    break
        discount = 0.0 if it["terminated"][env] else GAMMA ** (last - step + 1)
        return reward, discount, it["next_observation"][env]


def assert_rows_are_those_of(world, storage, n_step):
    rows = storage.rows
    places = torch.tensor([row % storage.places for row in rows], dtype=torch.int64)
    drawn = storage.gather(places)
    for i, place in enumerate(places.tolist()):
        env, step = storage.whose(place)
        assert step == rows[i] // world.num_env
        reward, discount, after = world.transition(env, step, n_step)
        its = world.steps[step]
        assert torch.equal(drawn["raw_observation"][i], its["raw_observation"][env].float())
        assert torch.equal(drawn["next_observation"][i], after.float())
        assert torch.equal(drawn["action"][i], its["action"][env])
        assert float(drawn["reward"][i]) == pytest.approx(reward, rel=1e-5)
        assert float(drawn["discount"][i]) == pytest.approx(discount)


def storage_of(stacking, places, num_env, capacity, **how):
    like = Stacked(stacking, places, num_env, 0).batch(2)
    return Storage(like, DQN.replayed, capacity, CPU, gamma=GAMMA, stacking=stacking, **how)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 9)),
        st.tuples(st.just("episodes anew"), st.just(0)),
        st.tuples(st.just("segment of another agent"), st.just(0)),
        st.tuples(st.just("take back"), st.integers(1, 4)),
        st.tuples(st.just("resume"), st.integers(1, 20)),
    ),
    max_size=14,
)


@settings(max_examples=150)
@given(
    events=EVENTS,
    count=st.integers(2, 5),
    channels=st.integers(1, 3),
    places=st.integers(1, 2),
    num_env=st.integers(1, 3),
    steps=st.integers(1, 20),
    n_step=st.integers(1, 5),
    static=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_what_is_drawn_are_the_stacks_that_were_shown(
    events, count, channels, places, num_env, steps, n_step, static, seed
):
    stacking = Stacking(count, channels)
    world = Stacked(stacking, places, num_env, seed)
    how = {"n_step": n_step, "static": static}
    storage = storage_of(stacking, places, num_env, steps * num_env, **how)
    for event, number in events:
        if event == "put":
            storage.put(world.batch(number))
        elif event == "take back":
            number = min(number, len(world.steps))
            if number:
                storage.take_back(number * num_env)
                world.take_back(number)
        elif event == "resume":
            state = storage.state_dict()
            storage = storage_of(stacking, places, num_env, number * num_env, **how)
            storage.load_state_dict(state)
        else:
            world.make_anew(within_episodes=event == "segment of another agent")
        assert_rows_are_those_of(world, storage, n_step)


@pytest.mark.parametrize("static", [False, True])
def test_older_frames_of_segments_outgrow_their_memory(static):
    stacking = Stacking(4, 1)
    world = Stacked(stacking, 2, 2, seed=5)
    storage = storage_of(stacking, 2, 2, 1_200, static=static)
    for _ in range(1_000):
        world.make_anew(within_episodes=True)
        storage.put(world.batch(2))
    assert_rows_are_those_of(world, storage, 1)
    assert len(storage.state_dict()["older"]) < 4 * 600


def test_on_a_gpu_nothing_waits_for_what_is_kept_and_drawn():
    stacking = Stacking(4, 1)
    world = Stacked(stacking, 6, 3, seed=2)
    # With room for what comes: only when there is none is it looked for.
    like = Stacked(stacking, 6, 3, seed=0).batch(12)
    how = {"n_step": 3, "gamma": GAMMA, "stacking": stacking, "static": True}
    storage = Storage(like, DQN.replayed, 90, CPU, **how)
    sampler = PrioritizedSampler(storage.places, CPU, static=True)
    replay = ReplayBuffer(storage, sampler, Limiter(0, 1.0), 16, torch.Generator().manual_seed(0))
    batches = [world.batch(4)]
    world.make_anew(within_episodes=True)
    batches.append(world.batch(4))
    for batch in batches:
        batch.columns["priority"] = batch["reward"].clone()
    with DeviceOnly():
        for batch in batches:
            replay.put(batch)
            _, keys = replay.next()
            sampler.update(keys, torch.ones(16))
    assert_rows_are_those_of(world, storage, 3)


class Travels(TorchDispatchMode):
    """Lists the types of what is copied to another device."""

    def __init__(self):
        super().__init__()
        self.types = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_to_copy" in str(func) and (kwargs or {}).get("device") == torch.device("meta"):
            self.types.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_bytes_travel_as_bytes_to_a_policy_on_another_device():
    stacking = Stacking(4, 1)
    storage = storage_of(stacking, 6, 3, 30)
    storage.put(Stacked(stacking, 6, 3, seed=2).batch(4))
    with Travels() as travels:
        drawn = storage.gather(torch.arange(6), torch.device("meta"))
    assert drawn["next_observation"].dtype == torch.float32
    assert travels.types.count(torch.uint8) == 2
    assert travels.types.count(torch.float32) == 3  # actions, rewards and discounts


def test_floats_are_kept_as_frames_too():
    stacking = Stacking(3, 4)
    world = Stacked(stacking, 1, 2, seed=1)

    def floats(batch):
        seen = ("raw_observation", "next_observation")
        return Batch(batch.columns | {name: batch[name].float() / 7 for name in seen})

    storage = Storage(floats(world.batch(1)), DQN.replayed, 40, CPU, stacking=stacking)
    batch = floats(world.batch(20))
    storage.put(batch)
    drawn = storage.gather(torch.arange(40))
    assert torch.equal(drawn["raw_observation"], batch["raw_observation"].flatten(0, 1))
    assert torch.equal(drawn["next_observation"], batch["next_observation"].flatten(0, 1))


# Bytes --------------------------------------------------------------------------------------------


def pong(steps, num_env):
    """A batch of stacks of four images, such as a replay is made for."""
    seen = torch.zeros(1, 1, 4 * IMAGE, dtype=torch.uint8).expand(steps, num_env, -1)
    ones = torch.zeros(steps, num_env)
    return Batch(
        {
            "raw_observation": seen, "next_observation": seen, "action": ones[..., None],
            "reward": ones, "done": ones, "terminated": ones > 0,
        }
    )  # fmt: skip


def test_a_million_stacks_of_images_are_7_2_gb(monkeypatch):
    # The bytes are told before they are taken.
    needed = []

    def told(self, more):
        needed.append(more)
        raise MemoryError

    monkeypatch.setattr(Storage, "_check_memory", told)
    with pytest.raises(MemoryError):
        Storage(pong(16, 8), DQN.replayed, 1_000_000, CPU, stacking=Stacking(4, 1))
    priorities = 1_000_000 * 9
    assert 7.0e9 < needed[0] + priorities < 7.2e9


def test_the_bytes_that_are_told_are_those_that_are_taken():
    stacking = Stacking(4, 1)
    storage = Storage(pong(16, 8), DQN.replayed, 2_000, CPU, stacking=stacking)
    for _ in range(20):
        storage.put(pong(16, 8))
    state = storage.state_dict()
    parts = [*state["columns"].values(), state["finals"], state["older"]]
    taken = sum(part.numel() * part.itemsize for part in parts)
    assert storage.nbytes == pytest.approx(taken, rel=0.01)
    whole = Storage(pong(16, 8), DQN.replayed, 2_000, CPU).nbytes
    assert 3.5 < whole / storage.nbytes < 4.1
