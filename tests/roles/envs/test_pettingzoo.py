"""Environments of several agents as rows: who is there, who is paid, and what is refused."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import bodies_agents
from gmi_drl.placement import MultiAgentConfig
from gmi_drl.roles.envs import EnvError, EnvRaised, EnvSpecError, make_env
from gmi_drl.roles.envs.agents import AgentSpaces, grouped

TWO = MultiAgentConfig(policies=("dogs", "sheep"), mapping={"wolf_*": "dogs", "*": "sheep"})


def made(what="Meadow", num_env=2, policies=TWO, **options):
    return make_env(
        f"bodies_agents:{what}", num_env, adapter="pettingzoo", options=options, seed=5,
        multi_agent=policies,
    )  # fmt: skip


def test_rows_of_a_policy_follow_one_another_and_are_padded():
    env = made()
    assert [group.agents for group in env.groups] == [("wolf_0",), ("sheep_0", "sheep_1")]
    assert env.num_env == 6
    assert env.reset().tolist() == [[2, 0, 7]] * 2 + [[0, 0, 0]] * 2 + [[1, 0, 0]] * 2
    assert [game.seeds for game in env._envs] == [[5], [6]]
    step = env.step(torch.tensor([[2.0, 1.0], [0.5, 0.0], [2, 9], [1, 9], [0, 9], [1, 9]]))
    assert step.reward.tolist() == [9.0, 1.5, 2.0, 1.0, 0.0, 2.0]
    wolf = env._envs[1].given[0]["wolf_0"]
    assert wolf.dtype == np.float32
    assert wolf.tolist() == [0.5, 0.0]


def faulty(num_env=2, **options):
    return made("Faulty", num_env, policies=None, **options)


def test_what_an_environment_raises_is_told_with_its_number_and_what_is_expected():
    env, actions = faulty(raises="step"), torch.zeros(4, dtype=torch.int64)
    env.reset()
    env.step(actions)
    with pytest.raises(EnvRaised) as raised:
        env.step(actions)
    told = str(pickle.loads(pickle.dumps(raised.value)))
    assert "env bodies_agents:Faulty: its step of environment 0 raised KeyError: 'map' (" in told
    assert "bodies_agents.py, line " in told
    assert "step takes actions by agent, and returns observations, rewards" in told
    with pytest.raises(EnvRaised) as raised:
        faulty(raises="reset").reset()
    assert "its reset of environment 0 raised KeyError" in str(raised.value)
    assert "returns observations and infos by agent" in str(raised.value)


@pytest.mark.parametrize("paid", ["much", [1.0, 2.0]])
def test_what_an_agent_is_paid_is_a_number(paid):
    env, actions = faulty(paid=paid), torch.zeros(4, dtype=torch.int64)
    env.reset()
    env.step(actions)
    with pytest.raises(EnvError, match=r"environment 0: agent agent_1 was paid .*; must be a num"):
        env.step(actions)


def test_who_leaves_is_not_there_until_all_are_reset():
    env, zero = made(num_env=1, length=4), torch.zeros(3, 2)
    env.reset()
    there, ended, cut = [], [], []
    for _ in range(5):
        there.append(env.present.tolist())
        step = env.step(zero)
        ended.append(step.terminated.tolist())
        cut.append(step.truncated.tolist())
    assert there == [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 0], [1, 1, 1]]
    assert ended == [[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert cut == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_who_has_left_is_not_paid_and_does_not_end_again():
    env = made("Telling", 1, length=4)
    env.reset()
    paid, ended = [], []
    for _ in range(4):
        step = env.step(torch.ones(3, 2))
        paid.append(step.reward[1].item())
        ended.append(step.terminated[1].item())
    assert paid == [1, 1, 0, 0]
    assert ended == [False, True, False, False]


def test_who_stays_among_the_agents_after_its_end_acts_no_more_and_ends_once():
    env, zero = made("Lingering", 1, None), torch.zeros(2)
    env.reset()
    there, ended = [], []
    for _ in range(11):
        there.append(env.present[0].item())
        ended.append(env.step(zero).terminated[0].item())
    assert there == [True] * 3 + [False] * 7 + [True]
    assert ended == [number == 2 for number in range(11)]


def test_actions_that_an_environment_changes_are_its_own():
    env, actions = made("Damped", 1, None, sheep=0), torch.tensor([[1.0, 1.5]])
    env.reset()
    env.step(actions)
    assert actions.tolist() == [[1.0, 1.5]]


def test_the_last_that_an_agent_saw_is_its_final_observation():
    env = made(num_env=1, length=4)
    env.reset()
    steps = []
    for _ in range(4):
        step = env.step(torch.zeros(3, 2))
        steps.append((step.observation.tolist(), step.final_observation.tolist()))
    observation, final = steps[1]  # the first sheep has left
    assert observation[1] == [0, 0, 0]
    assert final == [[2, 2, 7], [0, 2, 0], [1, 2, 0]]
    observation, final = steps[3]  # the wolf is cut, and all begin anew: the sheep see nothing yet
    assert observation == [[2, 0, 7], [0, 0, 0], [1, 0, 0]]
    assert final == [[2, 4, 7], [0, 0, 0], [0, 0, 0]]


def test_one_may_come_later():
    env = made(num_env=1, late="wolf_0")
    env.reset()
    assert env.present.tolist() == [False, True, True]
    assert env.step(torch.zeros(3, 2)).observation[0].tolist() == [2, 1, 7]
    assert env.present.tolist() == [True, True, True]


def test_a_time_limit_cuts_all_who_are_there():
    env = make_env(
        "bodies_agents:Meadow", 1, adapter="pettingzoo", multi_agent=TWO, max_episode_steps=1
    )
    env.reset()
    step = env.step(torch.zeros(3, 2))
    assert step.truncated.all()
    assert env.present.all()
    assert not step.terminated.any()


def test_who_comes_with_the_last_step_before_the_limit_has_had_no_episode():
    env = make_env(
        "bodies_agents:Meadow", 1, adapter="pettingzoo", multi_agent=TWO, max_episode_steps=1,
        options={"late": "wolf_0"},
    )  # fmt: skip
    env.reset()
    step = env.step(torch.zeros(3, 2))
    assert step.truncated.tolist() == [False, True, True]
    assert env.present.tolist() == [False, True, True]  # as at the beginning


def test_who_takes_turns_acts_in_turn_and_is_paid_for_the_turn_before():
    env = made("Countdown", 1, None)
    env.reset()
    there, paid, ended = [], [], []
    for _ in range(3):
        there.append(env.present.tolist())
        step = env.step(torch.ones(2))  # takes two; of the last, one is left
        paid.append(step.reward.tolist())
        ended.append(step.terminated.tolist())
    assert there == [[True, False], [False, True], [True, False]]
    assert paid == [[0, 0], [0, 0], [1, -1]]
    assert ended == [[False, False], [False, False], [True, True]]
    assert env.present.tolist() == [True, False]
    assert step.observation.tolist() == [[5], [0]]


@pytest.mark.parametrize("tells", [True, False])
def test_agents_who_are_gone_without_a_turn_for_it_have_ended_or_were_cut(tells):
    env = made("Abrupt", 1, None, tells=tells)
    env.reset()
    for _ in range(3):
        step = env.step(torch.ones(2))
    assert step.reward.tolist() == [1, -1]
    assert step.terminated.tolist() == [tells] * 2
    assert step.truncated.tolist() == [not tells] * 2
    assert step.final_observation.tolist() == [[1], [3]]  # the last that each of them saw


@pytest.mark.parametrize("limit", [4, 5])
def test_what_is_paid_for_the_last_turn_before_the_limit_counts(limit):
    env = make_env("bodies_agents:Toll", 1, adapter="pettingzoo", max_episode_steps=limit, seed=5)
    env.reset()
    paid = torch.zeros(2)
    for _ in range(limit):
        step = env.step(torch.zeros(2))
        paid += step.reward
    assert step.truncated.all()
    assert paid.sum() == limit


def test_an_agent_that_stays_when_its_episode_has_ended_is_named():
    env = made("Toll", 1, None, length=2, stays=True)
    env.reset()
    env.step(torch.zeros(2))
    with pytest.raises(EnvError, match=r"agent first is still among its agents.*_was_dead_step"):
        env.step(torch.zeros(2))


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (None, ["multi_agent.policies=shared", "sheep_0 and wolf_0", "have different spaces",
                "Give them policies of their own"]),
        ({"policies": ("a",), "mapping": {"sheep_*": "a"}},
         ["mapping=sheep_*", "agent wolf_0", "has no policy", "Add a line for it"]),
        ({"policies": ("a", "b", "c"), "mapping": {"sheep_*": "a", "*": "b"}},
         ["policies=c", "no agent is mapped to it", "remove the policy"]),
        ({"policies": ("a", "b"), "mapping": {"sheep_*": "a", "wolf_0": "b", "cow": "b"}},
         ["mapping.cow=b", "no agent", "sheep_0, sheep_1, wolf_0", "Remove or correct"]),
    ],
    ids=["different spaces", "no policy", "no agent", "no such agent"],
)  # fmt: skip
def test_policies_and_agents_that_do_not_fit_are_named(policies, words):
    with pytest.raises(EnvSpecError) as raised:
        made(policies=policies and MultiAgentConfig(**policies))
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_all_faults_are_listed():
    with pytest.raises(EnvSpecError) as raised:
        made(policies=MultiAgentConfig(policies=("a", "b"), mapping={"sheep_0": "a", "cow": "a"}))
    assert len(raised.value.faults) == 4  # two agents, a line, a policy


def test_what_breaks_the_interface_is_told_by_environment_and_agent(monkeypatch):
    env = made()
    seen = bodies_agents.Meadow._seen
    monkeypatch.setattr(bodies_agents.Meadow, "_seen", lambda self, agents: seen(self, ["wolf_0"]))
    with pytest.raises(EnvError, match=r"environment 0: agent sheep_0 .* no observation"):
        env.reset()
    monkeypatch.setattr(
        bodies_agents.Meadow, "_seen", lambda self, agents: dict.fromkeys(agents, np.zeros(5))
    )
    with pytest.raises(EnvError, match=r"of shape \[5\]; must be of shape \[2\]"):
        env.reset()


def test_observations_of_another_type_are_told_and_not_cut_to_whole_numbers():
    with pytest.raises(EnvError, match=r"agent agent_0 .* of float32; must be of uint8"):
        made("Shades", 1, None).reset()


def test_agents_go_by_names():
    with pytest.raises(EnvSpecError, match=r"possible_agents have 0, which is no str.*as agent_0"):
        made("Numbered", 1, None)


def test_environments_are_closed_where_one_is_refused_or_another_raises(monkeypatch):
    opened, failing = [], []

    def make(self, *arguments, **options):
        if failing:
            raise KeyError("no third one")
        constructor(self, *arguments, **options)
        opened.append(self)
        failing.extend([None] * (len(opened) == 2))

    def close(self):
        opened.remove(self)
        raise KeyError("not closed well")

    constructor = bodies_agents.Numbered.__init__
    monkeypatch.setattr(bodies_agents.Numbered, "__init__", make)
    monkeypatch.setattr(bodies_agents.Numbered, "close", close)
    with pytest.raises(EnvSpecError, match="possible_agents have 0"):
        made("Numbered", 2, None)
    assert not opened
    failing.clear()
    with pytest.raises(EnvRaised, match="its constructor raised KeyError: 'no third one'"):
        made("Numbered", 3, None)
    assert not opened
    failing.clear()
    monkeypatch.undo()
    env = made("Matching", 2, None)
    monkeypatch.setattr(bodies_agents.Matching, "close", close)
    opened += env._envs
    with pytest.raises(EnvRaised, match="its close raised KeyError: 'not closed well'"):
        env.close()
    assert not opened


def test_an_agent_is_named_by_its_name_whatever_patterns_mean_by_it():
    spaces = dict.fromkeys(["wolf[0]", "sheep"], AgentSpaces(Box(0, 1, (1,)), Discrete(2)))
    config = MultiAgentConfig(policies=("a", "b"), mapping={"wolf[0]": "a", "*": "b"})
    groups, faults = grouped("meadow", spaces, config)
    assert not faults
    assert [group.agents for group in groups] == [("wolf[0]",), ("sheep",)]


def test_what_is_not_there_is_said():
    with pytest.raises(EnvSpecError, match=r"no_such_games.*ModuleNotFoundError.*multi_agent"):
        make_env("no_such_games.v1", 1, adapter="pettingzoo")
    with pytest.raises(EnvSpecError, match=r"option 'sheeps'\. Did you mean sheep"):
        made(sheeps=3)
    with pytest.raises(EnvSpecError, match=r"is a str; must be a class or a function that makes"):
        make_env("bodies_agents:__name__", 1, adapter="pettingzoo")
    with pytest.raises(EnvSpecError, match="environments of one agent"):
        make_env("bodies_agents:Meadow", 1, adapter="pettingzoo", wrappers=["clip_reward"])


def test_pettingzoos_own():
    pytest.importorskip("mpe2")
    env = make_env(
        "mpe2.simple_spread_v3", 2, adapter="pettingzoo", options={"max_cycles": 3}, seed=1
    )
    first = env.reset(7)
    assert first.shape == (6, 18)
    assert (env.agents, env.present.all().item()) == (["agent_0", "agent_1", "agent_2"], True)
    for _ in range(3):
        step = env.step(torch.zeros(6, dtype=torch.int64))
    assert step.truncated.all()
    assert torch.equal(env.reset(7), first)
    env.close()


def test_a_policy_that_is_alone_acts_for_all_whatever_its_name():
    env = made("Matching", 1, MultiAgentConfig.model_validate({"policies": ["herd"]}))
    assert [(group.policy, group.agents) for group in env.groups] == [
        ("herd", ("agent_0", "agent_1"))
    ]
    with pytest.raises(ValueError, match=r"maps \* to shared, and the policies are a, b"):
        MultiAgentConfig.model_validate({"policies": ["a", "b"]})
