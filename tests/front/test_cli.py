"""The command line: what is printed, the exit codes, and what is not imported."""

import errno
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

import gmi_drl
from gmi_drl.cli import app as app_module
from gmi_drl.cli import main
from gmi_drl.cli.app import guarded
from gmi_drl.gmi import GmiDied
from gmi_drl.placement import ConfigError, Fault

ANT = """\
version: 1
run: {name: ant, total_steps: 10_000}
env: {id: Ant-v5, num_env: 16}
"""
CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "ant.yaml"
    path.write_text(ANT)
    return path


@pytest.fixture
def launcher(monkeypatch):
    """A launcher that notes its calls, and a runtime that starts nothing."""
    from gmi_drl import runtime

    calls = []
    fake = types.ModuleType("gmi_drl.launching")

    def launch(config, **options):
        calls.append(("launch", config, options))
        if isinstance(fake.result, BaseException):
            raise fake.result
        return fake.result

    fake.launch, fake.calls = launch, calls
    fake.result = types.SimpleNamespace(
        mem_peak_bytes=(300 << 20, 5 << 29),
        state="finished", iteration=3, steps=1536, seconds=2.0, steps_per_s=768.0,
        return_mean=12.34, eval_return=None, eval_std=None, eval_episodes=None,
        folder=Path("runs/ant/t"), curve=None,
        gmis=[{"iteration": 3}], experience=None, traces=(),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "gmi_drl.launching", fake)
    monkeypatch.setattr(gmi_drl, "launching", fake, raising=False)
    monkeypatch.setattr(runtime, "init", lambda preload: calls.append(("init", preload)))
    monkeypatch.setattr(runtime, "shutdown", lambda: calls.append(("shutdown",)))
    return fake


def run(*words):
    """gmi-drl in a process of its own, outside a terminal."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from gmi_drl.cli.main import main; sys.exit(main())",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gmi-drl {gmi_drl.__version__}\n"


def test_help_names_the_commands(capsys):
    assert main.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in ("launch", "check", "plan", "runs"))


@pytest.mark.parametrize("words", [["lunch"], ["plan"], ["plan", "x.yaml", "--sat", "a=1"]])
def test_bad_arguments_exit_2(words, capsys):
    assert main.main(words) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["launch", "check", "plan", "tune"])
def test_a_setting_without_its_option_is_told_how_to_be_given(name, capsys):
    assert main.main([name, "x.yaml", "run.total_steps=10", "env.id=My Env"]) == 2
    assert "--set run.total_steps=10 --set 'env.id=My Env'" in capsys.readouterr().err


def test_a_command_without_settings_does_not_propose_one(capsys):
    assert main.main(["runs", "x", "run.total_steps=10"]) == 2
    told = capsys.readouterr().err
    assert "unexpected: run.total_steps=10" in told
    assert "--set" not in told


def test_plan_shows_devices_gmis_and_reduction(config, capsys):
    assert main.main(["plan", str(config), "--set", "hardware.cores=[0]"]) == 0
    out = capsys.readouterr().out
    assert "CPU cores 0 " in out
    assert "simulator, agent, trainer  cpu      0      16" in out
    assert "256 (256 in each GMI)" in out
    assert "2 of 128 samples in each GMI, 4 epochs" in out
    assert "40 for 10,000 steps" in out
    assert "local: there is one GMI" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_plan_draws_in_ascii_where_the_encoding_has_no_more(config, monkeypatch, encoding):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    monkeypatch.setenv("PYTHONUTF8", "0")
    ended = run("plan", str(config), "--set", "hardware.cores=[0]", "--no-measure")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "+- ####" in ended.stdout


def test_plan_in_a_terminal_is_a_table(config):
    from rich.console import Console

    from gmi_drl.gmi import discover
    from gmi_drl.placement import layout_of, load_config
    from gmi_drl.report.plan_tables import print_plan

    loaded = load_config(config)
    console = Console(force_terminal=True, width=100)
    with console.capture() as captured:
        print_plan(console, loaded, layout_of(loaded, discover(None, "cpu", None)))
    assert "━" in captured.get()


def test_plan_of_gpus_shows_sms_and_memory():
    from rich.console import Console

    from gmi_drl.placement import Device, Topology, load_config, tcg_ex
    from gmi_drl.report.plan_tables import print_plan

    a100 = Device(0, "gpu", "NVIDIA A100", (0, 1), "GPU-0", 108, 40 * 2**30)
    loaded = load_config({"version": 1, "env": {"id": "Ant-v5"}})
    console = Console(force_terminal=False)
    with console.capture() as captured:
        print_plan(console, loaded, tcg_ex(Topology((a100,)), 2, 64, "direct"))
    out = captured.get()
    assert "NVIDIA A100  0-1    108  40 GiB  0, 1" in out


def test_plan_of_what_cannot_run_exits_2_with_the_faults(config, capsys):
    assert main.main(["plan", str(config), "--set", f"layout.gmi_per_gpu={CORES + 1}"]) == 2
    err = capsys.readouterr().err
    assert f"layout.gmi_per_gpu={CORES + 1}; device 0 has {CORES} of the {CORES} cores" in err


def test_check_of_a_good_config(config, capsys):
    assert main.main(["check", str(config)]) == 0
    assert capsys.readouterr().out == f"{config}: no faults\n"


def test_check_lists_faults_of_placement_environment_and_roles_at_once(config, capsys):
    overrides = [
        f"hardware.num_gpus={CORES + 1}", "env.id=Amt-v5", "algorithm.minibatches=7",
        "roles.trainer=no_such_module:T",
    ]  # fmt: skip
    words = [word for override in overrides for word in ("--set", override)]
    assert main.main(["check", str(config), *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{config}: 4 faults"
    for line, piece in zip(
        lines[1:],
        ("hardware.num_gpus=", "algorithm.minibatches=7", "Close: Ant-v5", "no_such_module"),
        strict=True,
    ):
        assert piece in line


def test_check_refuses_a_folder_that_no_run_can_be_written_to(config, tmp_path, capsys):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "runs"
    assert main.main(["check", str(config), "--set", f"run.folder={folder}"]) == 1
    told = " ".join(capsys.readouterr().err.split())  # without the ends of lines
    assert "run.folder='" in told  # long paths are shown in part
    assert f"; {tmp_path / 'file'} cannot be written to" in told


def test_what_a_faulty_module_says_is_quoted_printably(config, capsys):
    (config.parent / "my_module.py").write_text("raise RuntimeError('\\x1b[2Jx')")
    assert main.main(["check", str(config), "--set", "roles.trainer=my_module:T"]) == 1
    told = capsys.readouterr().err
    assert r"\x1b[2Jx" in told
    assert "\x1b" not in told


@pytest.mark.slow
def test_check_still_looks_at_the_rest_when_devices_are_missing(config, capsys):
    words = ["--set", "hardware.cores=[9999]", "--set", "algorithm.minibatches=7"]
    assert main.main(["check", str(config), *words]) == 1
    err = capsys.readouterr().err
    assert "2 faults" in err
    assert "hardware.cores=[9999]" in err
    assert "algorithm.minibatches=7" in err


def test_check_looks_past_unknown_keys_at_the_rest(config, capsys):
    wrong = ("env.num_evn=3", f"layout.gmi_per_gpu={CORES + 1}", "env.id=Ant-v999")
    assert main.main(["check", str(config), *(w for text in wrong for w in ("--set", text))]) == 1
    told = capsys.readouterr().err
    assert "3 faults" in told
    for piece in ("Did you mean env.num_env?", "layout.gmi_per_gpu=", "env.id='Ant-v999'"):
        assert piece in told


def test_check_of_an_empty_file_shows_the_smallest_config_to_copy(tmp_path, capsys):
    path = tmp_path / "empty.yaml"
    path.touch()
    assert main.main(["check", str(path)]) == 1
    assert "\n    version: 1\n    env:\n      id: CartPole-v1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "piece"),
    [
        ("import os; os._exit(3)", "ended the process"),
        ("print('hello')\nfrom gmi_drl import DRL_role\nclass T(DRL_role): pass", "GMI_run"),
    ],
)
def test_check_imports_role_modules_elsewhere(config, capsys, body, piece):
    (config.parent / "my_module.py").write_text(body)
    assert main.main(["check", str(config), "--set", "roles.trainer=my_module:T"]) == 1
    assert piece in capsys.readouterr().err
    assert "my_module" not in sys.modules


def test_check_finds_a_good_role_beside_the_config(config):
    (config.parent / "my_module.py").write_text(
        "from gmi_drl import DRL_role\nclass T(DRL_role):\n    def GMI_run(self, **params): pass\n"
    )
    assert main.main(["check", str(config), "--set", "roles.trainer=my_module:T"]) == 0


ALGORITHM = """
from typing import ClassVar
from gmi_drl.placement import AlgorithmConfig
from gmi_drl.roles.algorithms import Algorithm
class MyDQN(Algorithm):
    def losses(self, batch): pass
    class Settings(AlgorithmConfig):
        optimizers: ClassVar[tuple[str, ...]] = ("replay",)
        epsilon: float = 0.1
"""


@pytest.mark.slow
def test_check_reads_the_settings_of_an_algorithm_of_ones_own(config, capsys):
    (config.parent / "own_dqn.py").write_text(ALGORITHM)
    own = ["check", str(config), "--set", "algorithm={class: own_dqn:MyDQN, epsilon: 0.2}"]
    assert main.main(own) == 0
    capsys.readouterr()
    assert main.main([*own, "--set", "algorithm.epsilon=often", "--set", "algorithm.eta=3"]) == 1
    err = capsys.readouterr().err
    assert "--set algorithm.epsilon='often'; must be a number. Correct it, or leave it out" in err
    assert "--set algorithm.eta; unknown key. Did you mean search.eta? algorithm has name" in err
    assert "own_dqn" not in sys.modules


def test_check_names_an_algorithm_that_is_not_in_its_module(config, capsys):
    (config.parent / "own_dqn.py").write_text(ALGORITHM)
    assert main.main(["check", str(config), "--set", "algorithm={class: own_dqn:MyDQM}"]) == 1
    said = "own_dqn has no MyDQM; its classes: MyDQN. Did you mean MyDQN?"
    assert said in capsys.readouterr().err


def test_a_role_module_that_never_ends_has_a_deadline(config):
    from datetime import timedelta

    from gmi_drl.launcher.plan.user_code import class_faults
    from gmi_drl.placement import load_config

    (config.parent / "endless.py").write_text("while True: pass")
    loaded = load_config(config, ["roles.trainer=endless:T"])
    (fault,) = class_faults(loaded, config.parent, timedelta(seconds=0.5))
    assert "has not ended after 0.5 s" in fault


def test_launch_starts_the_fork_server_first_and_ends_it(config, launcher, capsys):
    assert main.main(["launch", str(config), "--set", "run.seed=3", "--plain"]) == 0
    assert [call[0] for call in launcher.calls] == ["init", "launch", "shutdown"]
    assert "torch" in launcher.calls[0][1]
    assert launcher.calls[1] == (
        "launch", config,
        {"overrides": ["run.seed=3"], "resume": None, "view": "plain", "keep_gcs": True},
    )  # fmt: skip
    out = capsys.readouterr().out
    assert "steps                         1,536" in out
    assert "return while training         12.3" in out


def test_launch_quietly_prints_nothing(config, launcher, capsys):
    assert main.main(["launch", str(config), "--quiet"]) == 0
    assert launcher.calls[1][2]["view"] == "none"
    assert capsys.readouterr().out == ""


def test_resume_needs_no_config(launcher, tmp_path, capsys):
    assert main.main(["launch", "--resume", str(tmp_path)]) == 0
    assert "2.50 GiB (GMI 1)" in capsys.readouterr().out  # the most that one has held
    assert launcher.calls[1][2]["resume"] == tmp_path
    assert main.main(["launch"]) == 2


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ConfigError([Fault("env.num_env", 0, "must be 1 or more", "Use 1.")]), 2),
        (GmiDied(1, "trainer", exit_code=3), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_failures_have_exit_codes_and_no_traceback(config, launcher, capsys, result, code):
    launcher.result = result
    assert main.main(["launch", str(config)]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.err
    assert launcher.calls[-1] == ("shutdown",)


def test_a_run_that_was_stopped_exits_130_and_says_how_to_go_on(
    config, launcher, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "60")
    launcher.result.state, launcher.result.folder = "stopped", tmp_path / ("a b" * 20)
    launcher.result.curve = launcher.result.folder / "report" / "curve.png"
    assert main.main(["launch", str(config)]) == 130
    assert "to go on" not in capsys.readouterr().out  # from where?
    (launcher.result.folder / "checkpoints" / "iteration_000003").mkdir(parents=True)
    assert main.main(["launch", str(config)]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert f"folder: {launcher.result.folder}" in lines
    assert f"learning curve: {launcher.result.curve}" in lines
    assert f"to go on: gmi-drl launch --resume '{launcher.result.folder}'" in lines


def test_an_evaluation_is_told_with_its_deviation_and_the_return_while_training(
    config, launcher, capsys
):
    launcher.result.eval_return, launcher.result.eval_std = 1017.26, 12.04
    launcher.result.eval_episodes = 10
    assert main.main(["launch", str(config)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    place = lines.index("return while training 12.3")
    evaluated = "return of the trained policy 1017.3 ± 12.0 (mean and deviation of 10 episodes)"
    assert lines[place + 1] == evaluated


@pytest.mark.parametrize("error", [GmiDied(1, "trainer", exit_code=3), KeyboardInterrupt()])
def test_what_was_noted_of_an_error_is_told_last(config, launcher, capsys, error):
    error.add_note("to go on: gmi-drl launch --resume runs/\x1b[2Jant/t")
    launcher.result = error
    assert main.main(["launch", str(config)]) != 0
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == r"to go on: gmi-drl launch --resume runs/\x1b[2Jant/t"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal_and_cut_nothing(width):
    from rich.console import Console

    from gmi_drl.launcher.view.tables import print_table

    console = Console(force_terminal=True, color_system=None, width=width)
    columns = ["name", "state", "iterations", "note", "folder"]
    folder = "/home/somebody/projects/" + "robots/" * 9
    rows = [["ant", "finished", "1,024", "x" * 30, folder], ["b", "failed", "1", "", "runs/b"]]
    with console.capture() as captured:
        print_table(console, "Runs [all]", columns, rows, ("note", "iterations", "name"))
    lines = captured.get().splitlines()
    assert lines[0].rstrip() == "Runs [all]"
    assert all(len(line) <= width for line in lines)
    assert "…" not in captured.get()
    whole = "".join(line.split("│")[-2].strip() for line in lines if line.startswith("│"))
    assert whole == f"{folder}runs/b"
    assert "finished" in captured.get()
    left_out = f"not shown in {width} columns: note, iterations, name"
    assert (left_out in captured.get()) == (width < 120)


def test_our_own_mistakes_keep_their_traceback(config, launcher):
    launcher.result = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        main.main(["launch", str(config)])
    assert launcher.calls[-1] == ("shutdown",)


@pytest.mark.parametrize("command", ["runs", "state", "compare", "page", "resize"])
def test_a_path_that_cannot_be_looked_at_is_told(command, capsys):
    assert main.main([command, "x" * 300]) == 2
    assert "x: File name too long. Give another path" in capsys.readouterr().err


def test_runs_lists_runs(tmp_path, capsys):
    folder = tmp_path / "ant" / "t0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        '{"state": "finished", "steps": 4096, "started": 0, "env": "Ant-v5", "seed": 3, '
        '"return_mean": 1, "eval_return": 1017.26}'
    )
    assert main.main(["runs", str(tmp_path)]) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    told = dict(zip([*head[:1], "day", *head[1:]], row, strict=True))  # a time has a blank
    assert (told["name"], told["state"], told["steps"]) == ("ant", "finished", "4,096")
    assert (told["env"], told["seed"]) == ("Ant-v5", "3")
    assert (told["return"], told["evaluation"]) == ("1.0", "1017.3")
    assert main.main(["runs", str(tmp_path / "ant" / "t0" / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_before_the_first_run_there_are_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.main(["runs"]) == 0
    assert "no runs" in capsys.readouterr().out


def test_bad_configs_never_show_a_traceback(tmp_path, capsys):
    for text in ("version: 1\nenv: {id: [1]}\nrun: 7", "\0", "version: 9", "{", "a: b: c"):
        path = tmp_path / "bad.yaml"
        path.write_text(text)
        assert main.main(["plan", str(path)]) == 2, text  # what it does not tell is raised
        assert "fault" in capsys.readouterr().err


@pytest.mark.slow
def test_planning_and_checking_import_no_torch(config):
    code = (
        "import sys; from gmi_drl.cli.main import main\n"
        "assert main(['plan', sys.argv[1]]) == 0 and main(['check', sys.argv[1]]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(config)], check=True, timeout=50)


def test_the_front_imports_only_what_starts_the_fork_server():
    code = (
        "import sys, gmi_drl.cli.main; assert not {'typer', 'rich', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_ctrl_c_before_the_command_has_begun(config, launcher, monkeypatch, capsys):
    from gmi_drl import runtime

    def interrupted(preload):
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "init", interrupted)
    assert main.main(["launch", str(config)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("package", ["", ".roles", ".roles.envs", ".comm", ".comm.experience"])
def test_dir_shows_what_a_package_offers_without_importing_it(package):
    code = (
        f"import sys, gmi_drl{package} as package\n"
        "assert set(package.__all__) <= set(dir(package)), dir(package)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_dir_of_the_front_page_shows_nothing_that_only_its_file_uses():
    code = (
        "import gmi_drl\n"
        "shown = {name for name in dir(gmi_drl) if not name.startswith('__')}\n"
        "assert shown <= {*gmi_drl.__all__}, shown\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_one_of_a_thing_has_no_plural():
    from gmi_drl.placement import counted

    told = [counted(count, "iteration") for count in (0, 1, 2000)]
    assert told == ["0 iterations", "1 iteration", "2,000 iterations"]


def test_a_disk_without_room_is_told_in_a_sentence(capsys):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device", "runs/t/run.json")

    assert guarded(full) == 1
    assert capsys.readouterr().err.startswith(
        "runs/t/run.json cannot be written (No space left on device). Free some space"
    )


def test_a_warning_is_printed_without_the_line_that_gave_it(tmp_path, monkeypatch):
    usual, printed = warnings.formatwarning, []

    def command(*_, **__):
        for kind in (UserWarning, DeprecationWarning):
            printed.append(warnings.formatwarning("as told", kind, "file.py", 7, "the line"))

    monkeypatch.setattr(app_module, "app", command)
    monkeypatch.setattr(main, "import_module", lambda name: None)  # commands of the real app
    main.main(["runs", str(tmp_path)])
    assert printed == [
        "warning: as told\n",
        "file.py:7: DeprecationWarning: as told\n  the line\n",
    ]
    assert warnings.formatwarning is usual
