"""Evaluates, films and exports what runs have trained."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from .app import AsJson, Overrides, command, console_for, print_json, refuse_no_file, status, tell

Run: TypeAlias = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, or one of its checkpoints.")
]
AtIteration: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, metavar="ITERATION", help="A checkpoint of it; else the newest."),
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where it goes.")
]


class Format(StrEnum):
    """Names the kinds of files."""

    pt2 = "pt2"
    onnx = "onnx"
    safetensors = "safetensors"


@command
def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or checkpoints.")
    ],
    checkpoint: AtIteration = None,
    episodes: Annotated[int, typer.Option(min=1, help="To play, of each run.")] = 20,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Else the episodes are those of the run itself.")
    ] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Draw actions, as in training.")
    ] = False,
    num_env: Annotated[
        int | None, typer.Option(min=1, help="Environments at once; else one for each episode.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> int:
    """Play whole episodes with the policy of each RUN; keeps report/eval.json in its folder."""
    from gmi_drl.errors import GmiDrlError
    from gmi_drl.trained.evaluation import evaluate as evaluated
    from gmi_drl.trained.evaluation import print_evaluations

    evaluations, code = [], 0
    with status("loading") as say:
        for run in runs:

            def show(ended: int, of: int, mean: float, run: Path = run) -> None:
                mean_text = f", mean {mean:,.1f}" if ended else ""
                say(f"{run}: {ended} of {of} episodes{mean_text}")

            try:
                evaluation = evaluated(
                    run,
                    checkpoint=checkpoint,
                    episodes=episodes,
                    seed=seed,
                    stochastic=stochastic,
                    num_env=num_env,
                    overrides=overrides or (),
                    device=device,
                    progress=show,
                )
            except GmiDrlError as error:
                if len(runs) == 1:
                    raise
                tell(error, error)  # the others are evaluated all the same
                code = code or error.command_exit_code
            else:
                evaluations.append(evaluation)
    if as_json:
        print_json([evaluation.as_json() for evaluation in evaluations])
    elif evaluations:
        print_evaluations(console_for(), evaluations)
    return code


@command
def video(
    run: Run,
    checkpoint: AtIteration = None,
    episodes: Annotated[int, typer.Option(min=1, help="To film.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the environment.")] = 0,
    max_frames: Annotated[int, typer.Option(min=1, help="After which the film ends.")] = 3000,
    output: Output = None,
    overrides: Overrides = None,
) -> int:
    """Film the policy of RUN as report/video.mp4, on a machine without a display too."""
    from gmi_drl.trained.filming import record_video

    if output is not None:
        refuse_no_file("-o", output)
    with status("loading") as say:
        file = record_video(
            run,
            checkpoint=checkpoint,
            episodes=episodes,
            seed=seed,
            max_frames=max_frames,
            file=output,
            overrides=overrides or (),
            progress=lambda line: say(f"{run}: {line}"),
        )
    print(f"film: {file}")
    return 0


@command
def export(
    run: Run,
    form: Annotated[
        Format, typer.Option("--format", help="Which kind of file.", case_sensitive=False)
    ] = Format.pt2,
    checkpoint: AtIteration = None,
    output: Output = None,
    card: Annotated[
        bool,
        typer.Option("--card", help="Add what model hubs read: README.md, results, config, film."),
    ] = False,
    policy_id: Annotated[
        str | None,
        typer.Option("--policy", metavar="NAME", help="Of several policies; else each, to a file."),
    ] = None,
    overrides: Overrides = None,
) -> int:
    """Write the policy of RUN for other programs, and try the file before it is said to be done."""
    import shlex

    from gmi_drl.trained.card import refuse_other_files, write_card
    from gmi_drl.trained.evaluation import evaluate as evaluated
    from gmi_drl.trained.exporting import export_policy
    from gmi_drl.trained.policy import PolicyNotLoaded, load_all

    loaded = load_all(run, checkpoint=checkpoint, overrides=overrides or ())
    names = loaded.policy_ids if policy_id is None else []
    if len(names) > 1 and (card or output is not None):
        raise PolicyNotLoaded(
            f"{'--card' if card else '-o'} is for one policy; {loaded.origin.folder.path} has "
            f"{', '.join(names)}. Give one of these as --policy."
        )
    folder = loaded.origin.folder.path / "export"
    for name in (*names,) or (policy_id,):
        policy = loaded.of_policy(name)
        file = output or folder / f"policy{'' if name is None else f'_{name}'}.{form.value}"
        if card:
            refuse_other_files(file)
        result = export_policy(policy, form.value, file)
        print(f"policy: {file} ({result})")
    if card:
        with status("evaluating") as say:
            evaluation = evaluated(run, checkpoint=checkpoint, overrides=overrides or ())
            card_file = write_card(
                policy, file, form.value, evaluation,
                overrides=overrides or (),
                progress=lambda line: say(f"filming: {line}"),
            )  # fmt: skip
        print(f"card: {card_file}\nTo publish it: hf upload NAME {shlex.quote(str(file.parent))}")
    return 0
