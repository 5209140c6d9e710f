"""Callbacks: what they are told, what becomes of what they raise, and how a config names them."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

import gmi_drl
from gmi_drl.cli import main
from gmi_drl.launcher.callbacks import loading
from gmi_drl.launcher.callbacks.callback import EndedRun
from gmi_drl.launcher.callbacks.calls import CallbackError, Callbacks
from gmi_drl.launcher.watch import iteration_times
from gmi_drl.placement import ConfigError, load_config
from gmi_drl.placement.config.yaml_text import write_yaml


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "pole.yaml"
    settings = {
        "version": 1,
        "run": {"name": "pole", "folder": str(tmp_path / "runs"), "total_steps": 1024, "seed": 3,
                "checkpoint_every": 2, "eval_episodes": 2},
        "env": {"id": "CartPole-v1", "num_env": 8},
        "algorithm": {"horizon": 32, "network": [16], "minibatches": 2, "epochs": 1},
    }  # fmt: skip
    path.write_text(write_yaml(settings))
    return path


class Notes:
    """Notes all that it is told."""

    def __init__(self):
        self.told = []

    def on_start(self, run):
        self.run = run
        self.told.append("start")

    def on_iteration(self, iteration, metrics):
        self.told.append(iteration)
        self.metrics = dict(metrics)

    def on_checkpoint(self, path):
        assert (path / "manifest.json").is_file()
        self.told.append(path.name)

    def on_end(self, end):
        self.end = end
        self.told.append(end.state)


class Raises(Notes):
    """Raises at one of the events, after it has noted it."""

    def __init__(self, event):
        super().__init__()
        self._event = event

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if not name.startswith("on_") or name != super().__getattribute__("_event"):
            return found

        def raising(*args):
            found(*args)
            raise ValueError("not today")

        return raising


def launch(config, *callbacks, overrides=(), **options):
    return gmi_drl.launch(config, callbacks=callbacks, overrides=overrides, view="plain", **options)


def state_of(result_or_folder):
    return json.loads((result_or_folder / "run.json").read_text())


@pytest.mark.slow
def test_a_callback_is_told_of_everything_in_order(config, warm):
    notes = Notes()
    result = launch(config, notes)
    assert notes.told == [
        "start", 1, 2, "iteration_000002", 3, 4, "iteration_000004", "finished"
    ]  # fmt: skip
    assert notes.run.folder == result.folder
    assert not notes.run.is_resumed
    assert notes.run.config.run.seed == 3
    last = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {key: notes.metrics[key] for key in last} == last
    assert notes.end.result.eval_return == result.eval_return
    assert state_of(result.folder)["state"] == "finished"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_the_end_is_told_of_a_run_that_fails_when_it_is_written_down(
    config, warm, monkeypatch, error
):
    def raising(*_):
        raise error

    monkeypatch.setattr("gmi_drl.launcher.folder.curve.draw_curve", raising)
    notes = Notes()
    with pytest.raises(error):
        launch(config, notes)
    assert notes.told[-1] == state_of(notes.run.folder)["state"]
    assert notes.told[-1] == ("stopped" if error is KeyboardInterrupt else "failed")


def test_ctrl_c_at_the_end_interrupts_one_callback_and_the_others_hear_of_it(config):
    class Interrupted:
        def on_end(self, end):
            raise KeyboardInterrupt

    notes = Notes()
    callbacks = Callbacks([Interrupted(), notes], config.parent, load_config(config))
    with pytest.raises(KeyboardInterrupt):
        callbacks.end(EndedRun("finished"))
    assert notes.told == ["finished"]


def test_ctrl_c_counts_although_a_callback_before_has_failed(config):
    class Interrupted:
        def on_checkpoint(self, path):
            raise KeyboardInterrupt

        on_end = on_checkpoint

    class Fails(Interrupted):
        def on_checkpoint(self, path):
            raise ValueError("not today")

        on_end = on_checkpoint

    fatal, lines = load_config(config, ["run.callback_errors=fail"]), []
    callbacks = Callbacks([Fails(), Interrupted()], config.parent, fatal)
    callbacks.show_on(lines.append)
    with pytest.raises(KeyboardInterrupt):
        callbacks.show({"kind": "checkpoint", "path": "iteration_000002"})
    with pytest.raises(KeyboardInterrupt):
        callbacks.end(EndedRun("failed"))
    assert "Fails.on_checkpoint raised ValueError: not today (run.callback_errors=" in lines[0]


def test_any_of_the_methods_is_enough(config, warm):
    class Ends:
        def on_end(self, end):
            self.state = end.state

    ends = Ends()
    launch(config, ends)
    assert ends.state == "finished"


@pytest.mark.parametrize("event", ["on_start", "on_iteration", "on_checkpoint", "on_end"])
def test_what_a_callback_raises_is_told_and_the_run_goes_on(config, warm, capsys, event):
    raises, notes = Raises(event), Notes()
    result = launch(config, raises, notes)
    out = capsys.readouterr().out
    assert result.state == "finished"
    assert out.count(f"warning: callback Raises.{event} raised ValueError: not today.") == 1
    log = (result.folder / "logs" / "callbacks.log").read_text()
    assert "Traceback" in log
    assert "in raising" in log
    assert notes.told[-1] == "finished"
    assert raises.told[-1] == ("start" if event == "on_start" else "finished")


@pytest.mark.parametrize("event", ["on_start", "on_iteration", "on_checkpoint", "on_end"])
def test_by_choice_it_ends_the_run_or_is_raised_when_all_is_written_down(config, warm, event):
    notes = Notes()
    with pytest.raises(CallbackError, match=f"Raises.{event} raised ValueError: not today"):
        launch(config, Raises(event), notes, overrides=["run.callback_errors=fail"])
    state = "finished" if event == "on_end" else "failed"
    assert notes.told[-1] == state
    assert state == "finished" or "not today" in notes.end.error
    (folder,) = (config.parent / "runs" / "pole").iterdir()
    assert state_of(folder)["state"] == state


def test_a_callback_can_stop_the_run_which_can_be_resumed(config, warm, capsys):
    class Enough(Notes):
        def on_iteration(self, iteration, metrics):
            super().on_iteration(iteration, metrics)
            if iteration == 3:
                self.run.request_stop("three are enough")

    enough = Enough()
    result = launch(config, enough, overrides=["run.total_steps=100000000"])
    assert result.state == enough.end.state == "stopped"
    assert "a callback asked for the end: three are enough" in capsys.readouterr().out
    more, steps = Notes(), result.steps + 256
    resumed = gmi_drl.launch(
        resume=result.folder, overrides=[f"run.total_steps={steps}"], view="none", callbacks=[more]
    )
    assert more.run.is_resumed
    assert more.told[1] == result.iteration + 1
    assert resumed.state == "finished"


def test_a_run_that_is_asked_to_end_is_given_time_by_how_long_its_iterations_take(
    config, warm, monkeypatch
):
    from bodies_front import Long

    class Enough(Notes):
        def on_iteration(self, iteration, metrics):
            super().on_iteration(iteration, metrics)
            self.run.request_stop("one is enough")

    monkeypatch.setattr(iteration_times, "_GRACE_S", 0.0)
    monkeypatch.setattr(iteration_times, "_ITERATIONS", 100)  # on a busy machine one is far longer
    result = launch(
        config, Enough(), overrides=["run.total_steps=100000000"], roles={"trainer": Long}
    )
    assert result.state == "stopped"


def test_a_failed_run_ends_for_its_callbacks_too(config, warm):
    from bodies_front import PaysNan

    notes = Notes()
    with pytest.raises(gmi_drl.GmiDrlError):
        launch(config, notes, roles={"trainer": PaysNan})
    assert notes.told[-1] == "failed"
    assert notes.end.result is None
    assert "environment 5" in notes.end.error


def test_lines_of_a_served_run_are_iterations(config, warm):
    notes = Notes()
    result = launch(config, notes, overrides=["mode=serving", "algorithm={name: ppo}"])
    assert result.state == "finished"
    assert notes.metrics["steps"] >= 1024


MINE = """
class Mine:
    def __init__(self, file, times=1):
        self.file, self.times = file, times

    def on_iteration(self, iteration, metrics):
        with open(self.file, "a") as file:
            file.write(f"{iteration * self.times}\\\\n")

class Nothing:
    pass

class Refuses:
    def __init__(self):
        raise ValueError("not made")

    def on_end(self, end):
        pass
"""


@pytest.fixture
def mine(config):
    (config.parent / "own_callbacks.py").write_text(MINE.replace("\\\\n", "\\n"))
    return config.parent / "told.txt"


def naming(entry):
    return f"run.callbacks=[{entry}]"


def test_a_config_names_classes_beside_it_with_their_options(config, warm, mine):
    launch(config, overrides=[naming(f"{{own_callbacks:Mine: {{file: {mine}, times: 10}}}}")])
    assert mine.read_text().split() == ["10", "20", "30", "40"]


def test_a_run_goes_on_with_modules_that_have_been_moved(config, warm, mine, tmp_path):
    folder = launch(
        config, overrides=[naming(f"{{own_callbacks:Mine: {{file: {mine}, times: 10}}}}")]
    ).folder
    (moved := tmp_path / "moved").mkdir()
    (config.parent / "own_callbacks.py").rename(moved / "own_callbacks.py")
    more = ["run.total_steps=1280"]
    with pytest.raises(ConfigError, match="own_callbacks"):
        launch(None, overrides=more, resume=folder)
    launch(None, overrides=more, resume=folder, import_path=moved)
    assert mine.read_text().split() == ["10", "20", "30", "40", "50"]
    assert state_of(folder)["config_folder"] == str(moved)  # where they are found from now on


def test_check_says_of_each_callback_what_is_wrong_with_it(config, mine, capsys):
    wrong = {
        "own_callbacks:Mines": "Did you mean Mine?",
        "nowhere_at_all:Mine": "importing nowhere_at_all failed",
        "own_callbacks:Nothing": "it has none of on_start, on_iteration",
        "own_callbacks:Mine": "cannot be made with options {}: missing a required argument: 'file'",
        "{own_callbacks:Mine: {files: x}}": "cannot be made with options {'files': 'x'}: ",
    }
    assert main.main(["check", str(config), "--set", naming(", ".join(wrong))]) == 1
    head, *told = " ".join(capsys.readouterr().err.split()).split(" --set run.callbacks=")
    assert head.endswith(": 5 faults")
    for text, said in zip(told, wrong.values(), strict=True):
        assert said in text


@pytest.mark.parametrize("entry", ["Mine", "{own_callbacks:Mine: 3}", "3"])
def test_what_names_no_class_is_no_callback(config, entry):
    with pytest.raises(ConfigError, match=r"which is no callback\. Write module:Class"):
        load_config(config, [naming(entry)])


def test_check_names_a_callback_whose_module_ends_the_process(config, capsys):
    (config.parent / "own_callbacks.py").write_text("import os\nos._exit(3)\n")
    assert main.main(["check", str(config), "--set", naming("{own_callbacks:Mine: {n: 1}}")]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "run.callbacks='own_callbacks:Mine'; importing it ended the process (it exited" in told


def test_launch_refuses_it_too_before_there_is_a_run(config, warm, mine):
    with pytest.raises(ConfigError, match="it has none of on_start"):
        launch(config, overrides=[naming("own_callbacks:Nothing")])
    assert not (config.parent / "runs").exists()


def test_one_that_cannot_be_made_fails_the_run(config, warm, mine):
    with pytest.raises(CallbackError, match="raised ValueError: not made"):
        launch(config, overrides=[naming("own_callbacks:Refuses")])


@pytest.mark.parametrize(
    ("given", "said"), [(Notes, "is a class. Make one"), (5, "5 has none of on_start")]
)
def test_what_is_no_callback_is_refused(config, given, said):
    with pytest.raises(ValueError, match=said):
        gmi_drl.launch(config, callbacks=[given])


def test_a_logger_that_is_not_installed_is_a_fault(config, monkeypatch):
    found = loading.find_spec
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name == "wandb" else found(name))
    with pytest.raises(ConfigError, match=r"package wandb is not installed.*\[wandb\]"):
        launch(config, overrides=["run.log=[wandb]"])


@pytest.mark.parametrize(
    ("value", "said"),
    [("[tensorboard, tensorboard]", "names a logger twice"), ("[tensorbord]", "tensorboard")],
)
def test_loggers_that_do_not_exist_are_faults(value, said):
    with pytest.raises(ConfigError, match=said):
        load_config({"version": 1, "env": {"id": "CartPole-v1"}}, [f"run.log={value}"])


def calls_of(tmp_path, callbacks, *overrides):
    config = load_config({"version": 1, "env": {"id": "CartPole-v1"}}, overrides)
    (tmp_path / "logs").mkdir()
    calls, said = Callbacks(callbacks, tmp_path, config), []
    calls.show_on(said.append)
    return calls, said


def record(iteration):
    return {"kind": "iteration", "iteration": iteration, "steps": iteration, "steps_per_s": 1.0,
            "return_mean": None, "gmi_seconds": []}  # fmt: skip


def test_one_that_fails_again_and_again_is_left_alone(tmp_path):
    raises = Raises("on_iteration")
    calls, said = calls_of(tmp_path, [raises])
    for iteration in range(1, 31):
        calls.show(record(iteration))
    assert raises.told == list(range(1, 11))
    assert said[-1] == "callback Raises raised 10 times and is not called any more"
    assert len(said) == 2


def test_what_was_said_before_there_was_a_screen_is_shown_once(tmp_path):
    (tmp_path / "logs").mkdir()
    config = load_config({"version": 1, "env": {"id": "CartPole-v1"}})
    calls, first, second = Callbacks([], tmp_path, config), [], []
    calls.say("early")
    for said in (first, second):  # that of another layout is another one
        calls.show_on(said.append)
    assert (first, second) == (["early"], [])


def test_loggers_get_what_is_logged_and_the_last_iteration(tmp_path):
    class Logger(Notes):
        only_logged = True

    logger, notes = Logger(), Notes()
    calls, _ = calls_of(tmp_path, [logger, notes], "run.log_every=3")
    for iteration in range(1, 9):
        calls.show(record(iteration))
    calls.end(EndedRun("finished"))
    assert logger.told == [3, 6, 8, "finished"]
    assert notes.told == [*range(1, 9), "finished"]


def test_records_that_are_no_iteration_are_not_told(tmp_path):
    notes = Notes()
    calls, _ = calls_of(tmp_path, [notes])
    strange = [{"kind": "iteration"}, {"kind": "checkpoint"}, {"kind": "checkpoint", "path": 5}]
    for one in [*strange, {"kind": []}, {}]:
        calls.show(one)
    assert notes.told == []


def test_measured_candidates_have_no_callbacks_and_no_loggers(monkeypatch, config):
    from gmi_drl.selector.tune.profile import candidate_run

    launched = []

    def launch(config, **options):
        launched.append(config)
        raise candidate_run.StopRun

    monkeypatch.setattr(candidate_run, "launch", launch)
    monkeypatch.setattr(candidate_run.runtime, "run_directory", lambda: config.parent)
    asked = load_config(config, ["run.log=[wandb]", "run.callbacks=[a:B]", "run.video_every=1"])
    watch = type("Watch", (), {"gang": None})()
    assert candidate_run.run_watched(lambda folder: asked, watch, None) is None
    run = launched[0].run
    assert (run.log, run.callbacks, run.video_every) == ((), (), 0)


@pytest.mark.slow
def test_the_example_keeps_the_best_checkpoint_and_says_how_it_ended(
    tmp_path, warm, monkeypatch, capsys
):
    whole = gmi_drl.launch

    def launch(config, overrides, callbacks):
        few = [*overrides, "run.total_steps=12000"]
        return whole(config, overrides=few, callbacks=callbacks, view="plain")

    monkeypatch.setattr(gmi_drl, "launch", launch, raising=False)
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[2] / "examples" / "callbacks.py"
    runpy.run_path(str(example), run_name="__main__")
    out = capsys.readouterr().out
    best = out.splitlines()[-1].removeprefix("best checkpoint: ")
    assert (Path(best) / "manifest.json").is_file()
    assert re.search(r"(finished|stopped); the best return was \d+", out)
