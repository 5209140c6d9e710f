"""Evaluations of agents count the episodes of those who are there, and their steps."""

import pytest
import torch

from gmi_drl.comm import solo_group
from gmi_drl.placement import MultiAgentConfig
from gmi_drl.roles.envs import make_env
from gmi_drl.roles.evaluators import evaluate
from gmi_drl.roles.evaluators.evaluate import evaluate_together, play
from gmi_drl.roles.policies.policy import GreedyActor
from toy_env import ToyEnv

TWO = MultiAgentConfig(policies=("a", "b"), mapping={"agent_2": "b", "*": "a"})


class First:
    """Takes the first choice."""

    state_columns = 0

    def mode(self, observation, state=None):
        return torch.zeros(len(observation), 1)


def made(what, multi_agent=None, **options):
    return make_env(
        f"bodies_agents:{what}", 2, adapter="pettingzoo", options=options, seed=3,
        multi_agent=multi_agent,
    )  # fmt: skip


def test_agents_who_never_come_are_not_waited_for(monkeypatch):
    env, taken = made("Lonely", count=3), []
    step = env.step
    monkeypatch.setattr(env, "step", lambda action: taken.append(action) or step(action))
    episodes = play(env, GreedyActor(First(), None), each=2)
    assert len(taken) == 20  # two episodes of ten steps
    assert episodes.counted.all(1).tolist() == [True] * 4 + [False] * 2
    assert episodes.ended.tolist() == [2] * 4 + [0] * 2
    assert episodes.lengths[:4].tolist() == [[10, 10]] * 4


def test_what_agents_are_paid_who_never_come_is_in_no_mean():
    env = made("Lonely", TWO, count=3)
    found = evaluate_together(
        env, First(), None, solo_group(), stop_requested=lambda: False, await_set_up=lambda: None
    )
    assert (found["eval_episodes"], found["eval_cut"]) == (4, 0)
    expected = play(made("Lonely", TWO, count=3), GreedyActor(First(), None)).returns[:4].mean()
    assert expected > 0
    assert found["eval_return"] == found["a/eval_return"] == pytest.approx(expected.item())
    assert "b/eval_return" not in found


def test_steps_of_agents_who_take_turns_are_their_own():
    episodes = play(made("Countdown"), GreedyActor(First(), None))
    assert episodes.lengths.tolist() == [[3], [3], [2], [2]]  # of five that are taken one by one
    assert episodes.returns.tolist() == [[1], [1], [-1], [-1]]


@pytest.mark.parametrize(("length", "begun"), [(5, 3), (12, 1), (100, 1)])
def test_episodes_behind_one_that_does_not_end_have_not_begun(monkeypatch, length, begun):
    monkeypatch.setattr(evaluate, "_LONGEST", 4)  # steps for each of three: twelve
    env = ToyEnv(2, length)
    env.max_episode_steps = None
    episodes = play(env, GreedyActor(First(), None), each=3)
    assert episodes.begun.sum(1).tolist() == [begun] * 2
    assert episodes.counted.all()
    assert episodes.lengths.sum(1).tolist() == [12] * 2
