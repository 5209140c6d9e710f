"""The report tells what was measured, why it was chosen, and what went wrong."""

from dataclasses import asdict, replace

import pytest
from rich.console import Console

from gmi_drl.selector.record.report import headline, is_sure, learning, show, sureness, why
from gmi_drl.selector.record.results import results_of
from gmi_drl.selector.tune.algorithms.observations import combined
from gmi_drl.selector.tune.candidate import DeviceSplit, Failed, row_text
from gmi_drl.selector.tune.race import RaceScore
from recorded import candidate, measured, on_cores, on_gpus, recorded


def shown(record, width=100, terminal=False):
    console = Console(
        width=width, record=True, force_terminal=terminal, file=open("/dev/null", "w")  # noqa: SIM115
    )  # fmt: skip
    with console.file:
        show(console, record)
        return console.export_text()


def styled(record):
    """The first line as a terminal gets it."""
    console = Console(width=100, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        show(console, record)
    return captured.get().splitlines()[0]


def test_the_sentence_says_how_much_against_whom_and_why_not_more():
    assert why(on_cores()) == (
        "2 GMIs per device with num_env 32 train 8,410 steps/s, as many as the runner-up (2 GMIs, "
        "num_env 64) within the noise of 2.8 % and 1.7 times the plain start (1 GMI, num_env 64); "
        "smaller batches learn better; beyond num_env 32 throughput is flat up to 64 while memory "
        "grows 1.2x; an update takes 1,024 steps."
    )
    assert headline(on_cores()) == "Ant-v5: 2 GMIs, num_env 32, 8,410 steps/s ± 1.0 %"
    assert sureness(on_cores()) == (
        "How sure it is: 7 of 40 candidates were measured in 0:35; the choice does 8,410 steps/s "
        "± 1.0 % (4.0 s); 1 of 6 others may be as fast, the nearest (2 GMIs, num_env 64) with "
        "8,420 steps/s ± 1.0 % (4.0 s)."
    )


def test_the_sentence_tells_what_ended_a_row():
    one, other = candidate(1, 64), candidate(1, 128)
    text = why(recorded([(one, measured(900.0)), (other, Failed("memory", "oom"))], one))
    assert text == (
        "1 GMI per device with num_env 64 trains 900 steps/s; num_env 128 runs out of memory; "
        "an update takes 1,024 steps."
    )


@pytest.mark.parametrize(
    ("rates", "piece"),
    [
        ((1000, 700), "beyond num_env 64 throughput falls by 30 % up to 128"),
        ((1000, 1300), "beyond num_env 64 throughput rises by 30 %"),  # chosen by its return
        ((1000, 980), "beyond num_env 64 throughput is flat up to 128"),
    ],
)
def test_the_sentence_tells_the_curve_beyond_the_winner(rates, piece):
    pair = candidate(1, 64), candidate(1, 128)
    assert piece in why(recorded(zip(pair, map(measured, rates), strict=True), *pair))


def test_the_sentence_tells_of_the_race_that_decided():
    races = [
        {"candidate": one, "round": 1, "points": [[9.0, mean]], "return_mean": mean}
        for one, mean in ((candidate(2, 32), 512.5), (candidate(2, 64), 300.0))
    ]
    record = on_cores(races=tuple(races))
    why_so = "its return was 512.5 after equal time"
    assert why_so in why(replace(record, chosen=replace(record.chosen, why=why_so)))
    assert "512.5" in shown(record)
    none = on_cores(races=tuple(race | {"return_mean": None, "points": []} for race in races))
    assert "no episode ended" in shown(none)


def test_it_is_told_whether_the_race_decided_or_the_prediction_and_by_how_much():
    plain, large = candidate(1, 64), candidate(1, 128)
    answers = [(plain, measured(500.0)), (large, measured(900.0))]
    prediction = {"own_samples": 1024, "own_horizon": 16, "noise_scale": 1024.0, "decay": 0.0}
    judged = [
        asdict(RaceScore(number, one, 10.0 * number, mean))
        for number, one, mean in (
            (1, large, -150.5), (1, plain, -160.0), (2, large, -90.0), (2, plain, None)
        )
    ]  # fmt: skip
    choice = {"prediction": prediction, "decided_by": "race", "judged": judged}
    assert (
        "the race decided, in round 1 a mean return of -150.5 against -160.0 in 10 s, in round 2 "
        "a mean return of -90.0 and none of the others in 20 s, with one seed a round"
    ) in sureness(recorded(answers, large, choice=choice))
    alone = {"prediction": prediction, "decided_by": "prediction", "race": "no race: too short"}
    assert (
        "the prediction alone decided, by which the next (1 GMI, num_env 64) takes 1.20 times as "
        "long to a return (no race: too short)"
    ) in sureness(recorded(answers, large, choice=alone))
    assert "tune.keep alone decided, by which" in sureness(
        recorded(answers, large, choice={**alone, "decided_by": "rule"})
    )
    assert "steps/s alone decided, by which" in sureness(
        recorded(answers, large, choice={**alone, "prediction": None})
    )
    assert "decided" not in sureness(recorded(answers, large))  # steps/s were asked for


def test_an_update_that_tuning_changes_is_told():
    plain, large = candidate(1, 64), candidate(1, 1024)
    answers = [(plain, measured(500.0)), (large, measured(900.0))]
    said = "an update takes 16,384 steps instead of 4,096, which may slow learning down"
    record = recorded(answers, large, choice={"changes": said})
    assert said in why(record)
    same = replace(record, choice={"changes": ""})
    assert "an update stays 16,384 steps" in why(same)
    unfinished = replace(record, choice={}, chosen=None)
    assert "an update takes 16,384 steps" in why(unfinished)


def test_what_a_choice_is_expected_to_learn_is_told_beside_the_others():
    plain, large = candidate(1, 64), candidate(1, 128)  # updates of 1,024 and 2,048
    answers = [(plain, measured(500.0)), (large, measured(900.0))]
    told = {"own_samples": 1024, "own_horizon": 16, "noise_scale": 1024.0, "decay": 0.0}
    choice = {"prediction": told, "noise": "gradient noise scale 1,024 samples (a run)"}
    record = recorded(answers, large, choice=choice)
    lines = list(learning(record))
    assert lines[0] == "gradient noise scale 1,024 samples (a run)"
    assert lines[1] == (
        "beside the plain start (1 GMI, num_env 64): 1.80 times its steps/s, and 0.83 times its "
        "time to a return, as predicted"
    )
    assert headline(record).endswith(
        ", predicted 0.83 times the time to a return of the plain start"
    )
    assert "Learning: beside the plain start" in shown(record)
    assert "time to a return" in shown(record)
    assert not list(learning(recorded(answers, large)))


def test_the_fastest_that_fills_the_memory_is_named_and_not_raced_after():
    ran = {4: (100.0, 2.0), 8: (190.0, 10.0), 16: (300.0, 19.4)}
    answers = [(candidate(1, n), measured(rate, gib)) for n, (rate, gib) in ran.items()]
    record = recorded(answers, candidate(1, 8), candidate(1, 4))
    told = "num_env 16 was faster and fills 97% of the memory"
    record = replace(record, chosen=replace(record.chosen, why=told))
    assert told in why(record)
    assert "rises by" not in why(record)
    slower = [*answers[:2], (candidate(1, 16), measured(180.0, 19.4))]
    assert "num_env 16 fills 97% of the memory" in why(recorded(slower, candidate(1, 8)))


def test_serving_has_no_batch():
    record = on_cores(header={"mode": "serving", "devices": 2})
    assert "2 GMIs on each of 2 devices with num_env 32 serve 8,410 steps/s" in why(record)
    assert "update" not in why(record)
    assert "an update" not in shown(record)


def test_a_plain_start_that_was_not_measured_is_not_told():
    pair = candidate(1, 8), candidate(1, 16)
    answers = zip(pair, map(measured, (100.0, 150.0)), strict=True)
    assert "plain start" not in shown(recorded(answers, *reversed(pair)))


def given(one):
    """The header of a tune whose config said all that this candidate has."""
    config = {
        "layout": {"gmi_per_gpu": one.row.gmi_per_gpu},
        "env": {"num_env": one.num_env},
        "algorithm": {"horizon": one.horizon},
        "tune": {"batch": None},
    }
    return {"config": config}


def test_the_choice_is_held_against_the_config_as_given_if_that_left_nothing_open():
    own, best = candidate(1, 16), candidate(2, 64)
    answers = [(own, measured(100.0)), (best, measured(250.0)), (candidate(1, 64), measured(90.0))]
    text = why(recorded(answers, best, own, header=given(own)))
    assert "2.5 times the runner-up and config as given (1 GMI, num_env 16)" in text
    assert "plain start" not in text
    itself = recorded(answers, best, own, header=given(best))
    assert "250 steps/s, which is the config as given, 2.5 times the runner-up" in why(itself)
    assert "winner, config as given" in shown(itself)
    untried = recorded(answers, best, own, header=given(candidate(8, 4)))
    assert "times the plain start (1 GMI, num_env 64)" in why(untried)
    assert "the config as given was not measured" in sureness(untried)
    answers[0] = (own, replace(measured(100.0), error=0.3))
    text = why(recorded(answers, best, own, header=given(own)))
    assert "more than the runner-up and config as given (1 GMI, num_env 16), by how much" in text


TOO_LITTLE = {
    "as found by a newcomer": (
        measured(2259.0, error=0.4, seconds=1.4),
        measured(610.0, error=0.1),
    ),
    "too short": (measured(2259.0, seconds=0.6), measured(610.0)),
    "within the noise": (measured(1000.0, error=0.03), measured(950.0, error=0.03)),
}


@pytest.mark.parametrize("pair", TOO_LITTLE.values(), ids=TOO_LITTLE)
def test_nothing_bold_is_concluded_from_too_little(pair):
    first, second = candidate(2, 64), candidate(1, 64)
    record = recorded([(first, pair[0]), (second, pair[1])], first, second)
    assert not is_sure(record)
    assert "times" not in why(record)
    assert "% more" not in why(record)
    assert "\x1b[1m" not in styled(record)
    told = sureness(record)
    assert "2 of 40 candidates were measured" in told
    assert f"± {100 * pair[0].error:.1f} % ({pair[0].seconds:.1f} s)" in told
    assert ("may be as fast" in told) == (pair[0].error > 0.01)


def test_what_noise_cannot_explain_is_bold_and_a_budget_that_ended_it_is_told():
    first, second = candidate(2, 64), candidate(1, 64)
    answers = [(first, measured(2000.0)), (second, measured(1000.0))]
    record = recorded(answers, first, second)
    assert is_sure(record)
    assert "2.0 times the runner-up" in why(record)
    assert "\x1b[1m" in styled(record)
    assert "each of the others differs by more than the noise" in sureness(record)
    ended = recorded(answers, first, second, complete=False)
    assert not is_sure(ended)
    assert "a longer tune is surer" in sureness(ended)


def test_it_is_told_when_the_config_as_given_fails():
    own, best = candidate(2, 512), candidate(1, 64)
    answers = [(best, measured(250.0)), (own, Failed("memory", "none left"))]
    told = "; the config as given (2 GMIs, num_env 512) runs out of memory"
    assert told in why(recorded(answers, best, header=given(own)))


def test_a_record_of_failures_alone_is_a_report_too():
    record = recorded([(candidate(1, 512), Failed("crash", "env.step: [bad] action"))])
    assert why(record) == (
        "Nothing could be measured: 1 of 40 candidates were measured in 0:05 (1 failed)."
    )
    text = shown(record)
    assert "env.step: [bad] action" in text
    assert "crash ✗" in text


def test_an_interrupted_tune_says_so():
    record = replace(on_cores(), chosen=None)
    assert headline(record).endswith("so far")
    assert "nothing is chosen yet" in why(record)
    assert "Steps/s" in shown(record)
    assert "Left out" not in shown(record)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_tables_have_every_measurement_and_every_failure(terminal):
    text = shown(on_gpus(header={"held": ["env Ant"], "started": 0}), 130, terminal)
    for piece in ("4 GMIs, SMs 2x", "★", "☆", "memory ✗", "hang ✗", "Failed", "Left out"):
        assert piece in text
    assert "CUDA out of memory [2.3 GiB]" in text
    assert "Held fixed: env Ant." in text
    assert "which is what the budget allowed" in " ".join(text.split())


def test_a_narrow_terminal_has_the_rows_below_each_other():
    text = shown(on_gpus(), 60, terminal=True)
    assert text.count("Steps/s") == 2
    assert max(len(line) for line in text.splitlines() if line.startswith("│")) <= 60


def test_a_stale_record_says_why():
    drift = {"kind": "drift", "steps_per_s": 3000.0, "text": "a run did 3,000 steps/s"}
    assert "Stale: a run did 3,000 steps/s. Tune again." in shown(on_cores(drifts=(drift,)))


def test_measurements_of_one_candidate_are_weighted_by_their_error():
    both = combined([measured(1000.0, 1.0, error=0.01), measured(1300.0, 2.0, error=0.1)])
    assert 1000 < both.steps_per_s < 1005
    assert both.error < 0.01
    assert both.host_bytes == 2 * 2**30
    assert both.seconds == 8.0


def test_the_last_answer_says_whether_a_candidate_runs():
    """One that crashed when asked again does not; slow with too little time is no failure."""
    fine, slow, crash = measured(9.0), Failed("slow", "no iteration"), Failed("crash", "it died")
    one, two, three = (candidate(1, n) for n in (16, 32, 64))
    answers = [(one, fine), (one, crash), (two, slow), (two, fine), (three, fine), (three, slow)]
    found = results_of(recorded(answers).profiles)
    assert [f.candidate for f in found.all] == [two, three]
    assert list(found.failures) == [one]


def test_rows_are_told_apart_by_what_differs_alone():
    one, mps, green = DeviceSplit(1, "direct"), DeviceSplit(2, "mps"), DeviceSplit(2, "green")
    uneven = DeviceSplit(2, "mps", 1.0, (67, 33))
    assert row_text(one, [one, mps]) == "1 GMI"
    assert row_text(mps, [one, mps]) == "2 GMIs"
    assert row_text(green, [one, mps, green]) == "2 GMIs, green"
    assert row_text(uneven, [mps, uneven]) == "2 GMIs, 67:33 % of SMs"


def test_a_row_is_saturated_where_nothing_larger_is_clearly_faster():
    found = results_of(on_cores().profiles)
    assert [found.knee(row).candidate.num_env for row in found.rows] == [64, 32]
    alone = results_of(recorded([(candidate(1, 8), measured(1.0))]).profiles)
    assert [alone.knee(row) for row in alone.rows] == [None]
