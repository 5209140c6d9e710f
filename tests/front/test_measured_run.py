"""The run that measures a candidate: as the candidate says, and nothing beside training."""

from gmi_drl.placement import Device, Topology, check, layout_of, load_config
from gmi_drl.selector.tune.profile.candidate_run import candidate_config
from gmi_drl.selector.tune.space import space_of

GPU = Topology(
    (
        Device(
            0, "gpu", "H100", tuple(range(16)), "GPU-0", sm_count=132, mem_bytes=80 << 30,
            capability=(9, 0),
        ),
    ),
    unusable=(("mig", "not here"),),
)  # fmt: skip


def test_shares_that_differ_run_by_a_layout_file_in_the_runs_own_folder(tmp_path):
    config = load_config(
        {
            "version": 1,
            "run": {"total_steps": 10**9, "eval_episodes": 3, "checkpoint_every": 5},
            "env": {"id": "CartPole-v1", "num_env": "auto"},
            "layout": {"template": "tdg_ex", "gmi_per_gpu": "auto"},
            "hardware": {"backend": "mps"},
        }
    )
    space, _ = space_of(config, GPU)
    one = next(c for its in space.rows for c in its if c.row.percents == (16, 16, 67))
    its = candidate_config(config, one, tmp_path, GPU, total_steps=7)
    assert not check(its, GPU)
    assert [gmi.sm_percent for gmi in layout_of(its, GPU).gmis] == [16, 16, 67]
    assert (its.run.folder, its.run.total_steps) == (str(tmp_path), 7)
    assert (its.run.eval_episodes, its.run.checkpoint_every, its.run.max_restarts) == (0, 0, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["layout.yaml"]
    even = next(c for its in space.rows for c in its if c.row.percents is None)
    assert candidate_config(config, even, tmp_path).run.total_steps == 10**9
