"""Shows what a scheduler has where, for tests that look inside."""

from gmi_drl.runtime.scheduler.resources import to_amounts


def state(scheduler):
    """By device: what is queued, runs and is free there."""
    return {index: _device(local) for index, local in scheduler._locals.items()}


def _device(local):
    workers = local.workers.values()
    return {
        "queued": local.queue.length,
        "running": sum(w.running is not None for w in workers),
        "blocked": sum(w.blocked for w in workers),
        "ahead": sum(len(w.ahead) for w in workers),
        "workers": len(local.workers),
        "starting": local.starting,
        "actors": local.actors,
        "free": to_amounts(local.resources.free),
        "total": to_amounts(local.resources.total),
    }
