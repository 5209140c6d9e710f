"""Configs: what is read, what is refused, and that every fault is told at once."""

import pickle
from textwrap import dedent
from typing import ClassVar

import pytest
import yaml
from pydantic import Field, field_validator

from gmi_drl.placement import (
    AUTO,
    NETWORKS,
    AlgorithmConfig,
    Config,
    ConfigError,
    Fault,
    PPOConfig,
    Topology,
    check,
    load_config,
    resolved,
    settings_of,
    simplest,
)
from gmi_drl.placement.config.load import with_places
from gmi_drl.placement.config.schema import keys_of
from gmi_drl.placement.config.section import hidden_sizes
from gmi_drl.placement.config.yaml_text import read_yaml, write_yaml

MINIMAL = {"version": 1, "env": {"id": "Ant-v5"}}


def config_file(folder, text):
    path = folder / "config.yaml"
    path.write_text(dedent(text))
    return path


def faults_of(source, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return [str(fault) for fault in caught.value.faults]


def only_fault(source, *overrides):
    (fault,) = faults_of(source, *overrides)
    return fault


def test_defaults_are_the_papers_settings_for_ant():
    algorithm = load_config(MINIMAL).algorithm
    assert (algorithm.gamma, algorithm.lam) == (0.99, 0.95)
    assert (algorithm.learning_rate, algorithm.kl_target) == (3e-4, 0.008)
    assert (algorithm.horizon, algorithm.epochs, algorithm.value_coef) == (16, 4, 2.0)
    assert NETWORKS["humanoid"] == (200, 400, 100)  # the paper's, not IsaacGymEnvs'
    assert hidden_sizes(load_config(MINIMAL, ["algorithm.network=mlp"]).algorithm.network) == (
        64,
        64,
    )


def test_a_resolved_config_reads_back_as_itself(tmp_path):
    config = load_config(
        {**MINIMAL, "roles": {"trainer": "my_module:MyTrainer"}},
        ["env.options.healthy_reward=0.5", "algorithm.network=[64, 32]", "hardware.cores=[0]"],
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(path) == config
    assert load_config(config.model_dump()) == config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("name", ["impala", "appo"])
def test_an_algorithm_has_defaults_of_its_own_and_writes_only_what_it_uses(name):
    config = load_config({**MINIMAL, "mode": "async", "algorithm": {"name": name, "lam": 0.5}})
    algorithm = config.algorithm
    assert (algorithm.schedule, algorithm.value_coef) == ("linear", 0.5)
    assert algorithm.lam == 0.5
    written = config.model_dump(mode="json")
    assert "rho_clip" in written["algorithm"]
    assert ("clip" in written["algorithm"]) == (name == "appo")
    assert load_config(written) == config


def test_mode_async_trains_by_impala_unless_it_is_told_otherwise():
    for algorithm in ({}, {"algorithm": {"epochs": 3}}, {"algorithm": None}):
        config = load_config({**MINIMAL, "mode": "async", **algorithm})
        assert config.algorithm.name == "impala"
    assert load_config(MINIMAL).algorithm.name == "ppo"


def test_a_field_that_the_algorithm_does_not_use_is_a_fault(tmp_path):
    path = config_file(
        tmp_path,
        """\
        version: 1
        env: {id: Ant-v5}
        mode: async
        algorithm:
          clip: 0.2
          schedule: adaptive
          rho_clip: 0.5
        """,
    )
    assert faults_of(path) == [
        "algorithm.c_clip=1.0; must be at most rho_clip, 0.5. Lower it, or raise rho_clip.",
        "line 5: algorithm.clip=0.2; is a setting of ppo, appo and mappo, and the algorithm is "
        "impala. Leave it out, or use ppo, appo or mappo.",
        "line 6: algorithm.schedule='adaptive'; must be one of constant, linear. Correct it, or "
        "leave it out for the default, linear.",
    ]
    assert (
        "is a setting of impala and appo, and the algorithm is ppo. Leave it out, or"
        in only_fault(MINIMAL, "algorithm.c_clip=1")
    )


def test_an_optimizer_must_be_one_that_the_algorithm_runs_under():
    config = load_config(MINIMAL, ["algorithm.optimizer=all_reduce"])
    assert config.algorithm.resolved_optimizer == "all_reduce"
    assert config.model_dump()["algorithm"]["optimizer"] == "all_reduce"
    assert load_config(MINIMAL).algorithm.resolved_optimizer == "all_reduce"
    assert only_fault(MINIMAL, "algorithm.optimizer=async_samples") == (
        "--set algorithm.optimizer='async_samples'; the algorithm runs under all_reduce or "
        "local: what agents send meanwhile is of an older policy, which it does not correct for. "
        "Use all_reduce, or auto, or algorithm.name: appo or impala, which do."
    )
    assert "one gradient for each batch, and it takes several steps" in only_fault(
        MINIMAL, "algorithm.optimizer=parameter_server"
    )
    a3c = {**MINIMAL, "algorithm": {"name": "a3c"}}
    assert "or algorithm.name: a2c." in only_fault(a3c, "algorithm.optimizer=local")
    config = load_config({**MINIMAL, "mode": "async"})
    assert config.algorithm.resolved_optimizer == "async_samples"


def test_an_algorithm_of_ones_own_is_kept_as_it_is_but_for_what_all_have():
    own = {"class": "my_module:MyDQN", "epsilon": 0.1, "learning_rate": 1e-3}
    config = load_config({**MINIMAL, "algorithm": own})
    assert (config.algorithm.name, config.algorithm.learning_rate) == ("MyDQN", 1e-3)
    assert config.model_dump(mode="json")["algorithm"] == own
    assert load_config(config.model_dump(mode="json")) == config
    assert pickle.loads(pickle.dumps(config)) == config
    for key, value, said in (
        ("gamma", 2, "algorithm.gamma=2; must be at most 1"),
        ("class", "my_module", "algorithm.class='my_module'; not of the right form"),
        ("name", "ppo", "algorithm.name='ppo'; names an algorithm twice, by name and by class"),
        ("optimizer", "repaly", "Did you mean replay?"),
    ):
        assert said in only_fault({**MINIMAL, "algorithm": {**own, key: value}})


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("a2c", "epochs", 10, "epochs=10; must be 1 for a2c (a second pass would be down the "
         "gradient of a policy that has not sampled). Leave it out, or give 1."),
        ("pg", "lam", 0.9, "lam=0.9; must be 1 for pg (returns as they were, to the end of an "
         "episode or of the horizon). Leave it out, or give 1."),
        ("alphazero", "horizon", 64, "horizon=64; must be 1 for alphazero (games are played "
         "whole, whatever their length). Leave it out, or give 1."),
        ("es", "bootstrap_time_limit", True, "bootstrap_time_limit=True; must be false for es "
         "(nothing is valued, and an episode that is cut counts by what it was paid). Leave it "
         "out, or give false."),
    ],
)  # fmt: skip
def test_a_key_that_an_algorithm_fixes_is_told_with_the_algorithm_and_the_reason(
    name, key, value, said
):
    config = {**MINIMAL, "algorithm": {"name": "ppo", key: value}}
    assert f"algorithm.{said}" in only_fault(config, f"algorithm.name={name}")


class Own:
    class Settings(AlgorithmConfig):
        optimizers: ClassVar[tuple[str, ...]] = ("replay",)

        horizon: int = 1
        epsilon: float = Field(default=0.1, ge=0, le=1)


def test_the_class_of_an_algorithm_says_what_settings_there_are():
    def settings(**keys):
        section = {"class": "my_module:Own", **keys}
        return settings_of(Own, load_config({**MINIMAL, "algorithm": section}).algorithm)

    own = settings(epsilon=0.5, gamma=0.9)
    assert (own.name, own.horizon, own.epsilon, own.gamma) == ("Own", 1, 0.5, 0.9)
    assert own.resolved_optimizer == "replay"
    with pytest.raises(ConfigError) as caught:
        settings(epsilon=2, epsilom=1, clip=0.1, optimizer="all_reduce")
    assert sorted(str(fault) for fault in caught.value.faults) == [
        "algorithm.clip=0.1; is a setting of ppo, appo and mappo, and the algorithm is one of "
        "yours. Leave it out, or use ppo, appo or mappo.",
        "algorithm.epsilom; unknown key. Did you mean algorithm.epsilon? algorithm has name, "
        "optimizer, network, activation, layer_norm, horizon, gamma, learning_rate, "
        "max_grad_norm, reward_scale, normalize_observation, bootstrap_time_limit, precision, "
        "epsilon.",
        "algorithm.epsilon=2; must be at most 1. Correct it, or leave it out for the default, 0.1.",
        "algorithm.optimizer='all_reduce'; the algorithm runs under replay. Use replay, or auto.",
    ]


def test_what_a_class_of_settings_says_of_a_value_is_told_as_it_is():
    class Strict:
        class Settings(AlgorithmConfig):
            kind: str = "a"

            @field_validator("kind")
            @classmethod
            def _check(cls, value):
                raise ValueError("must be one of {a, b}")

    section = load_config({**MINIMAL, "algorithm": {"class": "a:Strict", "kind": "c"}}).algorithm
    with pytest.raises(ConfigError, match=r"kind='c'; Value error, must be one of \{a, b\}\. "):
        settings_of(Strict, section)


@pytest.mark.parametrize("optimizer", [5, None, ["replay"], {"name": "replay", "lag": 1}])
def test_an_optimizer_of_a_class_that_is_no_name_is_a_fault(optimizer):
    with pytest.raises(ConfigError, match=r"must be one of auto, all_reduce, "):
        load_config({**MINIMAL, "algorithm": {"class": "a:B", "optimizer": optimizer}})


def test_a_list_of_faulty_entries_alone_is_not_told_as_empty():
    with pytest.raises(ConfigError) as caught:
        load_config({**MINIMAL, "multi_agent": {"policies": [1]}})
    (fault,) = caught.value.faults
    assert str(fault).startswith("multi_agent.policies.0=1; must be text.")
    with pytest.raises(ConfigError, match=r"policies=\(\); must not be empty"):
        load_config({**MINIMAL, "multi_agent": {"policies": []}})


@pytest.mark.parametrize(
    ("optimizers", "said"),
    [
        (("all_reduc",), "=('all_reduc',); must be a tuple of {}. Did you mean all_reduce?"),
        ("all_reduce", "='all_reduce'; must be a tuple of {}. Did you mean ('all_reduce',)?"),
        ((), "=(); must be a tuple of {}. Name one or more of them."),
        (None, "; its Settings is no subclass of gmi_drl.placement.AlgorithmConfig. "),
    ],
)
def test_settings_that_no_algorithm_can_have_are_told(optimizers, said):
    class Bad:
        Settings = object

    if optimizers is not None:
        Bad.Settings = type("Settings", (AlgorithmConfig,), {"optimizers": optimizers})
    section = load_config({**MINIMAL, "algorithm": {"class": "a:Bad"}}).algorithm
    with pytest.raises(ConfigError) as caught:
        settings_of(Bad, section)
    known = (
        "all_reduce, local, async_gradients, parameter_server, async_samples, replay, apex, "
        "population, tree_search"
    )
    assert said.format(known) in str(caught.value)


def test_settings_that_are_derived_from_those_of_a_shipped_algorithm_have_its_keys():
    class Calm:
        class Settings(PPOConfig):
            calm_coef: float = 1e-3

    section = {"class": "a:Calm", "clip": 0.1, "calm_coef": 0.5}
    own = settings_of(Calm, load_config({**MINIMAL, "algorithm": section}).algorithm)
    assert (own.name, own.clip, own.calm_coef, own.implementation) == ("Calm", 0.1, 0.5, "a:Calm")


def test_faults_of_a_class_are_told_with_their_line_or_their_option(tmp_path):
    path = config_file(tmp_path, """
        version: 1
        algorithm: {class: "a:B", eta: 3}
        roles: {trainer: {class: "a:C"}}
        """)  # fmt: skip
    faults = ["algorithm.eta=3; unknown key", "roles.trainer='a:C'; no role", "env.id; missing"]
    assert with_places(faults, path, ["roles.trainer.class=a:C", "algorithm={}"]) == [
        "--set algorithm.eta=3; unknown key", "line 4: roles.trainer='a:C'; no role",
        "env.id; missing",
    ]  # fmt: skip
    assert with_places(faults, path, [])[0] == "line 3: algorithm.eta=3; unknown key"
    assert with_places(faults, None, []) == faults


def test_numbers_are_read_as_people_write_them(tmp_path):
    path = config_file(
        tmp_path,
        """
        version: 1
        run: {total_steps: 1e6, seed: 0x10}
        env: {id: Ant-v5, num_env: 1_024}
        algorithm: {learning_rate: 3e-4, gamma: 1, max_grad_norm: null}
        comm:
        """,
    )
    config = load_config(path)
    assert (config.run.total_steps, config.run.seed, config.env.num_env) == (10**6, 16, 1024)
    assert (config.algorithm.learning_rate, config.algorithm.gamma) == (3e-4, 1.0)
    assert config.algorithm.max_grad_norm is None
    assert type(config.run.total_steps) is int


def test_every_fault_is_told_at_once_in_the_order_of_the_file(tmp_path):
    path = config_file(
        tmp_path,
        """\
        version: 1
        env:
          id: Ant-v5
          nmu_env: 3
          num_env: 0
          adapter: mujoco3
        algorithm:
          gamma: .nan
          horizon: yes
          network: [64, -1]
        num_env: 2
        hardware: {backend: cuda, cores: [0, 0]}
        """,
    )
    faults = faults_of(path, "run.foo=1", "oops", "env.id.x=3")
    places = [fault.partition(":")[0] for fault in faults if fault.startswith("line")]
    assert places == [f"line {n}" for n in (4, 5, 6, 8, 9, 10, 11, 12, 12)]
    assert len(faults) == 12
    text = "\n".join(faults)
    for piece in (
        "line 4: env.nmu_env; unknown key. Did you mean env.num_env? env has id, adapter, ",
        "line 5: env.num_env=0; must be 1 or more, or auto. Give a number, or auto for the one",
        "line 6: env.adapter='mujoco3'; must be one of auto, mujoco, ",
        "Did you mean mujoco?",
        "line 8: algorithm.gamma=nan; must be a finite number",
        "line 9: algorithm.horizon='yes'; must be a whole number",
        "line 10: algorithm.network=[64, -1]; must be a preset, a list",
        "line 11: num_env; unknown key. Did you mean env.num_env? the top level has version",
        "line 12: hardware.backend='cuda'; must be one of auto, cpu, direct, mps, mig, green. ",
        "line 12: hardware.cores=[0, 0]; names a core twice",
        "--set run.foo; unknown key; run has name, seed",
        "--set oops; must be section.key=value",
        "--set env.id.x=3; env.id is 'Ant-v5', which has no keys",
    ):
        assert piece in text


def test_a_key_in_the_wrong_section_is_sent_to_the_right_one():
    assert "; unknown key. Did you mean algorithm.horizon?" in only_fault(MINIMAL, "run.horizon=3")
    assert "Did you mean layout.gmi_per_gpu?" in only_fault(MINIMAL, "gmi_per_gpu=2")


def test_a_config_from_the_future_says_so_and_nothing_else():
    fault = only_fault({"version": 2, "swarm": {}, "env": 7})
    assert fault == (
        "version=2; a config from the future: this gmi-drl reads version 1. "
        "Upgrade gmi-drl, or write the config for this version."
    )


@pytest.mark.parametrize("version", [0, True, "1", 1.0, None])
def test_any_other_version_is_refused(version):
    fault = only_fault({**MINIMAL, "version": version})
    assert fault.startswith("version")
    assert "must be 1" in fault or "missing" in fault


def test_what_is_required_is_named():
    faults = faults_of({})
    assert [fault.partition(";")[0] for fault in faults] == ["version", "env"]
    assert "env.id; missing" in only_fault({"version": 1, "env": {}})


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("version: 1\nenv: {id: A\nrun: 3", "not YAML"),
        ("version: 1\nenv:\n\t id: A", "line 3: "),
        ("version: 1\nenv: {id: A, id: B}", "env.id; given twice, first in line 2"),
        ("version: 1\nversion: 1\nenv: {id: A}", "line 2: version; given twice, first in line 1"),
        ("- 1", "must be a mapping of keys to values. The smallest config:"),
        ("", "the file is empty. The smallest config:\n\n    version: 1\n    env:\n      id: "),
        ("# nothing yet\n", "the file is empty. The smallest config:"),
        ("version: !!python/object:os.system {}", "not YAML"),
        ("version: 1\nenv: {id: !!int abc}", "line 2: "),
        (f"version: 1\nenv: {{id: A, num_env: {'9' * 5000}}}", "no int, or one too large"),
        ("a: &a [*a]", "a; unknown key"),
    ],
)
def test_text_that_is_no_config_is_refused_with_its_place(tmp_path, text, piece):
    assert piece in "\n".join(faults_of(config_file(tmp_path, text)))


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "ant.yaml").write_text("")
    assert "no such file. Did you mean" in only_fault(tmp_path / "amt.yaml")
    assert "cannot be read" in only_fault(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"version: \xff")
    assert "not UTF-8" in only_fault(tmp_path / "latin.yaml")


def test_overrides_win_and_are_yaml():
    config = load_config(
        {**MINIMAL, "roles": {"trainer": "a:B"}},
        [
            "env.num_env=8",
            "env.num_env=16",
            "env.options.xml_file=my=ant.xml",
            "run.target_return=null",
            "roles.trainer.params.cost=1e-2",
            "algorithm.clip_value_loss=false",
        ],
    )
    assert config.env.num_env == 16
    assert config.env.options == {"xml_file": "my=ant.xml"}
    assert config.roles["trainer"].class_ == "a:B"
    assert config.roles["trainer"].params == {"cost": 0.01}
    assert config.algorithm.clip_value_loss is False


def test_overrides_do_not_change_the_mapping_they_are_put_on():
    source = {"version": 1, "env": {"id": "Ant-v5", "options": {}}}
    load_config(source, ["env.options.a=1"])
    assert source == {"version": 1, "env": {"id": "Ant-v5", "options": {}}}


def test_a_bad_override_is_named_as_one():
    assert only_fault(MINIMAL, "env.num_env=-1").startswith("--set env.num_env=-1; must be 1")
    for text in ("[1", "!!int abc", "9" * 5000, "[" * 5000):
        assert "not a YAML value" in only_fault(MINIMAL, f"env.num_env={text}")


@pytest.mark.parametrize("role", ["my_module:MyTrainer", "ökonomie:Überbau", "_a.b:_C"])
def test_a_role_is_named_by_module_and_class(role):
    config = load_config({**MINIMAL, "roles": {"trainer": role}})
    assert config.roles["trainer"].class_ == role


@pytest.mark.parametrize("role", ["MyTrainer", "a b:C", "a:", ":C", "a:b:c", 3, None])
def test_a_role_must_be_module_and_class(role):
    assert "roles.trainer" in "\n".join(faults_of({**MINIMAL, "roles": {"trainer": role}}))


def test_run_names_stay_inside_their_folder():
    for name in ("../up", "a/b", "", ".", "-x"):
        assert "run.name" in only_fault({**MINIMAL, "run": {"name": name}})


def test_configs_do_not_change():
    config = load_config(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        config.mode = "async"


def test_every_key_is_described():
    def undescribed(section, where):
        for name, field in keys_of(section).items():
            if not field.description:
                yield f"{where}.{name}"

    sections = [Config, *(f.annotation for f in Config.model_fields.values())]
    found = [u for s in sections if hasattr(s, "model_fields") for u in undescribed(s, s.__name__)]
    assert found == []


def test_the_error_survives_pickle_with_its_faults():
    error = ConfigError([Fault("env.num_env", 0, "must be 1 or more", "Use 1.", 4)], "a.yaml")
    again = pickle.loads(pickle.dumps(error))
    assert again.faults == error.faults
    assert str(again) == "a.yaml: 1 fault\n  line 4: env.num_env=0; must be 1 or more. Use 1."


def test_auto_is_found_by_tuning_and_written_as_it_was(tmp_path):
    config = load_config(MINIMAL, ["env.num_env=auto", "layout.gmi_per_gpu=auto"])
    assert not config.is_resolved
    assert (config.env.num_env, config.layout.gmi_per_gpu) == (AUTO, AUTO)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert path.read_text().count(": auto\n  options") == 1
    assert load_config(path) == load_config(config.model_dump()) == config
    assert load_config(MINIMAL).is_resolved
    for key in ("env.num_env", "layout.gmi_per_gpu"):
        assert not load_config(MINIMAL, [f"{key}=auto"]).is_resolved


def test_what_is_found_takes_the_place_of_auto_and_nothing_else():
    given = load_config(MINIMAL, ["env.num_env=auto", "layout.gmi_per_gpu=3"])
    assert resolved(given, num_env=96) == load_config(
        MINIMAL, ["env.num_env=96", "layout.gmi_per_gpu=3"]
    )
    assert resolved(given, gmi_per_gpu=2, num_env=8) == load_config(
        MINIMAL, ["env.num_env=8", "layout.gmi_per_gpu=2"]
    )
    assert simplest(given).layout.gmi_per_gpu == 3


@pytest.mark.parametrize(
    ("template", "mode", "fewest"),
    [("auto", "sync", 1), ("tdg_ex", "sync", 2), ("tdg", "serving", 2), ("tcg", "serving", 1)],
)
def test_the_simplest_has_the_fewest_gmis_that_the_template_allows(template, mode, fewest):
    overrides = [f"mode={mode}", f"layout.template={template}"]
    given = load_config(MINIMAL, [*overrides, "layout.gmi_per_gpu=auto", "env.num_env=auto"])
    found = simplest(given)
    assert (found.layout.gmi_per_gpu, found.env.num_env) == (fewest, 64)
    assert check(given, Topology.from_cores([0, 1])) == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("layout.gmi_per_gpu=0", "layout.gmi_per_gpu=0; must be 1 or more, or auto. Give a number"),
        (
            "env.num_env=-3",
            "env.num_env=-3; must be 1 or more, or auto. Give a number, or auto for",
        ),
        ("env.num_env=maximal", "env.num_env='maximal'; must be a whole number, or auto. Give a"),
        ("env.num_env=yes", "env.num_env='yes'; must be a whole number, or auto"),
        ("env.num_env=true", "env.num_env=True; must be a whole number, or auto"),
        ("env.num_env=1.5", "env.num_env=1.5; must be a whole number, or auto"),
        ("tune.budget_s=-1", "tune.budget_s=-1; must be more than 0. Correct it, or leave it out"),
        (
            "tune.budget_s=5x",
            "tune.budget_s='5x'; must be a time. Use for example 5m, 90s, 1h30m or",
        ),
        ("tune.budget_s=0m", "must be more than 0"),
        ("tune.objective=return", "tune.objective='return'; must be one of learning, steps"),
        ("tune.objective=reward", "tune.objective='reward'; must be one of learning, steps"),
        (
            "tune={budget_s: 60, race_s: 60}",
            "tune.race_s=60; must be less than budget_s, 60. Lower it, or raise the budget.",
        ),
        (
            "tune={keep: none, batch: 64}",
            "tune.batch=64; says what keep: update keeps, and keep is none. Leave one of them out.",
        ),
        ("tune.batch=auto", "tune.batch='auto'; must be a whole number"),
        (
            "tune={min_num_env: 64, max_num_env: 32}",
            "tune.max_num_env=32; must be at least min_num_env, 64. Raise it, or lower the other.",
        ),
    ],
)
def test_what_cannot_be_tuned_is_a_fault(override, said):
    assert said in only_fault(MINIMAL, override)


@pytest.mark.parametrize(
    ("written", "seconds"), [("5m", 300), ("1h30m", 5400), ("90s", 90), ("2.5", 2.5), ("30", 30)]
)
def test_a_budget_is_seconds_or_a_time_as_people_write_it(written, seconds):
    found = load_config(MINIMAL, [f"tune.budget_s={written}"])
    assert found.tune.budget_s == seconds
    assert load_config(found.model_dump(mode="json")) == found


def test_serving_has_no_update_to_keep():
    told = only_fault(MINIMAL, "mode=serving", "tune.batch=1024")
    assert "batch=1024; mode serving trains nothing" in told
    assert "Leave out tune.batch" in told


def test_a_layout_file_fixes_what_auto_would_find():
    told = only_fault(MINIMAL, "layout=gmis.yaml", "env.num_env=auto")
    assert "its file says which GMIs there are, and env.num_env is auto" in told
    assert "Give env.num_env, or a template in place of layout.file." in told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "trpo",
            "gmi-drl does not have this algorithm: mode sync has ppo, a2c, pg, a3c, dqn, sac, td3, "
            "ddpg, es, ars, mappo, vdn, qmix, alphazero, mbpo and cem, mode async has impala, "
            "appo, dqn, sac, td3 and ddpg.",
        ),
        ("QRDQN", "gmi-drl does not have this algorithm"),
        (
            "PPO",
            "must be one of ppo, a2c, pg, a3c, impala, appo, dqn, sac, td3, ddpg, es, ars, "
            "mappo, vdn, qmix, alphazero, mbpo, cem. Did you mean ppo?",
        ),
        ("impalla", "Did you mean impala?"),
        ("dnq", "Did you mean dqn?"),
        (
            "abc",
            "must be one of ppo, a2c, pg, a3c, impala, appo, dqn, sac, td3, ddpg, es, ars, "
            "mappo, vdn, qmix, alphazero, mbpo, cem. Correct it, or leave it",
        ),
    ],
)
def test_only_a_slip_of_an_algorithm_is_guessed_at(name, told):
    keys = {"batch_size": 8, "clip": 0.1, "gamma": 2}  # of no single algorithm
    with pytest.raises(ConfigError) as caught:
        load_config({"version": 1, "env": {"id": "A"}, "algorithm": {"name": name, **keys}})
    (fault,) = caught.value.faults
    assert fault.where == "algorithm.name"
    assert told in str(caught.value)
    assert ("Did you mean" in str(caught.value)) == ("Did you mean" in told)


@pytest.mark.parametrize(
    ("algorithm", "template", "gmis"),
    [
        ({}, "tcg_ex", 1),
        ({"optimizer": "local"}, "tdg_ex", 2),
        ({"name": "a3c"}, "tdg_ex", 2),
        ({"name": "a2c", "optimizer": "parameter_server"}, "parameter_server", 2),
        ({"class": "my_module:Own"}, "tcg_ex", 1),
        ({"class": "my_module:Own", "optimizer": "async_gradients"}, "tdg_ex", 2),
    ],
)
def test_a_template_that_is_auto_is_the_one_that_the_optimizer_needs(algorithm, template, gmis):
    config = load_config({**MINIMAL, "algorithm": algorithm})
    assert (config.template.name, config.layout.gmi_per_gpu) == (template, gmis)
    again = load_config(config.model_dump(mode="json"))
    assert (again.template, again.layout.gmi_per_gpu) == (config.template, gmis)
    given = load_config({**MINIMAL, "algorithm": algorithm}, ["layout.gmi_per_gpu=3"])
    assert (given.template.name, given.layout.gmi_per_gpu) == (template, 3)
    named = load_config({**MINIMAL, "algorithm": algorithm}, ["layout.template=tcg_ex"])
    assert (named.template.name, named.layout.gmi_per_gpu) == ("tcg_ex", 1)


@pytest.mark.parametrize("name", ["a2c", "impala", "dqn"])
@pytest.mark.parametrize(
    "optimizer", [{"name": "local", "drop": 1}, {"drop_slowest": 1}, ["local"]]
)
def test_an_optimizer_that_is_no_name_is_told_how_to_be_written(name, optimizer):
    mode = "async" if name == "impala" else "sync"
    section = {"name": name, "optimizer": optimizer}
    fault = only_fault({**MINIMAL, "mode": mode, "algorithm": section})
    assert "algorithm.optimizer" in fault
    assert "Write optimizer: local, or optimizer: {name: local, drop_slowest: 1}." in fault


@pytest.mark.parametrize(
    ("override", "here"),
    [
        ("algorithm.lr=0.1", "algorithm.learning_rate"),
        ("algorithm.gae_lambda=0.9", "algorithm.lam"),
        ("algorithm.n_steps=8", "algorithm.horizon"),
        ("algorithm.use_lstm=true", "algorithm.recurrent"),
        ("env.frame_stack=4", "env.wrappers"),
    ],
)
def test_a_key_as_other_libraries_call_it_is_answered_with_ours(override, here):
    assert f"unknown key. Did you mean {here}?" in only_fault(MINIMAL, override)


@pytest.mark.parametrize(
    ("name", "here"),
    [("reinforce", "Use pg."), ("R2D2", "Use dqn with recurrent."), ("apex", "optimizer is apex")],
)
def test_an_algorithm_that_is_here_by_another_name_is_named(name, here):
    assert here in only_fault({**MINIMAL, "algorithm": {"name": name}})


def test_a_recurrent_cell_may_be_given_by_its_name_alone():
    config = load_config(MINIMAL, ["algorithm.recurrent=gru"])
    assert config == load_config(MINIMAL, ["algorithm.recurrent={cell: gru, size: 128}"])
    assert "must be one of lstm, gru" in only_fault(MINIMAL, "algorithm.recurrent=rnn")


@pytest.mark.parametrize(
    "text",
    ["a\x85b", "\u2028", "1e5", "0x10", "08", "1_000", "yes", "~", "<<", "=", " a", "a: b", "a\nb"],
)
def test_text_is_read_as_it_was_written_here_and_by_pyyaml(text):
    data = {"key": text, text: [text, 1e5]}
    written = write_yaml(data)
    assert read_yaml(written, "a file")[0] == yaml.safe_load(written) == data
