"""Small jobs: their configs, of which tests write what is special, and their launches."""

import yaml

import gmi_drl


def job_file(folder, changes=(), **sections):
    """Writes the config of a job of CartPole with these sections; returns its path.

    `changes` are dotted overrides with __ for the dot, or sections and keys as a whole.
    """
    job = {
        "version": 1,
        "env": {"id": "CartPole-v1", "num_env": 8, "max_episode_steps": 50},
        **sections,
    }
    for key, value in dict(changes).items():
        section, _, name = key.partition("__")
        job[section] = {**job.get(section, {}), name: value} if name else value
    job["run"] = {"name": "t", "folder": str(folder / "runs"), **job["run"]}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def launch(path=None, *overrides, **options):
    """Launches a job, or goes on with one, and shows nothing."""
    return gmi_drl.launch(path, overrides=overrides, view="none", **options)
