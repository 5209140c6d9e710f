"""What a suite has measured, made up for tests."""


def tuned_record(what):
    """What a tuner finds where two GMIs pay up to 64 environments, and not at 256."""

    def one(gmis, num_env, rate, **phases):
        return {"gmis": gmis, "num_env": num_env, "backend": what["backend"], "steps_per_s": rate,
                "error": 0.01, "phases": phases}  # fmt: skip

    tried = [one(1, 64, 1000.0, simulate=1.0), one(1, 256, 2500.0, simulate=1.0),
             one(2, 32, 1500.0, simulate=0.5, train=0.5),
             one(2, 128, 2000.0, simulate=0.5, train=0.5)]  # fmt: skip
    choice = {"gmis": 1, "num_env": 256, "backend": what["backend"], "capture": what["capture"]}
    return {"choice": choice, "steps_per_s": 2500.0, "error": 0.01, "why": "it is fastest",
            "complete": True, "profiles": 5, "space": 20, "spent_s": 14.0, "candidates": tried,
            "refused": []}  # fmt: skip


def ladders_of(num_env, env="BallBalance-v0"):
    """What cells follow from, as if it had been measured."""
    what = {"num_env": num_env, "gmis": 1, "backend": "direct", "devices": 1, "env": env}
    best = {"steps_per_s": 1.0, "kind": "rate"}
    found = {
        f"{experiment}/ladder/{num_env}#0": {
            **best, "experiment": experiment, "what": {**what, "mode": mode, "network": "ant"},
        }
        for experiment, mode in (("training", "sync"), ("serving", "serving"))
    }  # fmt: skip
    hand = {**what, "mode": "sync", "network": "shadowhand"}
    found["num_env/shadowhand#0"] = {**best, "experiment": "num_env", "what": hand}
    for network in ("ant", "shadowhand"):
        for cap in (256, 4096, 65536):
            key = f"tuner/{network}, {cap} environments/tune#0"
            found[key] = {"kind": "tune", "experiment": "tuner", "choice": {**what, "gmis": 2}}
    return found


def stored(suite, stage, path):
    return suite.Store.open(path, suite.identity(stage, []))[0]
