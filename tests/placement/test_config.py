"""Configs: what is read, what is refused, and that every fault is told at once."""

import pickle
from textwrap import dedent

import pytest
import yaml

from gmi_drl.placement import NETWORKS, Config, ConfigError, Fault, load_config

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


@pytest.mark.parametrize("name", ["impala", "a3c"])
def test_an_algorithm_has_defaults_of_its_own_and_writes_only_what_it_uses(name):
    config = load_config({**MINIMAL, "mode": "async", "algorithm": {"name": name, "lam": 0.5}})
    algorithm = config.algorithm
    assert (algorithm.schedule, algorithm.value_coef) == ("linear", 0.5)
    assert algorithm.lam == 0.5
    written = config.model_dump(mode="json")
    assert ("rho_clip" in written["algorithm"]) == (name == "impala")
    assert "clip" not in written["algorithm"]
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
        "line 5: algorithm.clip=0.2; algorithm impala does not use it. Leave it out, or use ppo.",
        "line 6: algorithm.schedule='adaptive'; only ppo adapts its learning rate. Use constant or "
        "linear.",
    ]
    assert "algorithm ppo does not use it. Leave it out, or use impala." in only_fault(
        MINIMAL, "algorithm.c_clip=1"
    )


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
        "line 4: env.nmu_env; unknown key; env has id, adapter, num_env",
        "Did you mean env.num_env?",
        "line 5: env.num_env=0; must be 1 or more, or auto. Give a number, or auto for the one",
        "line 6: env.adapter='mujoco3'; must be one of auto, mujoco, ",
        "Did you mean mujoco?",
        "line 8: algorithm.gamma=nan; must be a finite number",
        "line 9: algorithm.horizon='yes'; must be a whole number",
        "line 10: algorithm.network=[64, -1]; must be a preset or a list",
        "line 11: num_env; unknown key; there are version, run, env",
        "line 12: hardware.backend='cuda'; must be one of auto, cpu, direct, mps, mig, green. ",
        "line 12: hardware.cores=[0, 0]; names a core twice",
        "--set run.foo; unknown key; run has name, seed",
        "--set oops; must be section.key=value",
        "--set env.id.x=3; env.id is 'Ant-v5', which has no keys",
    ):
        assert piece in text


def test_a_key_in_the_wrong_section_is_sent_to_the_right_one():
    assert only_fault(MINIMAL, "run.horizon=3").endswith("Did you mean algorithm.horizon?")
    assert only_fault(MINIMAL, "gmi_per_gpu=2").endswith("Did you mean layout.gmi_per_gpu?")


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
        ("- 1", "must have the keys version, run, env"),
        ("", "must have the keys"),
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
        for name, field in section.model_fields.items():
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
