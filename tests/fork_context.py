"""Where processes of tests come from: the one fork server that multiprocessing has."""

import multiprocessing

from gmi_drl.launcher.start.preload import PRELOAD

CONTEXT = multiprocessing.get_context("forkserver")
# Imported once: torch.optim alone takes seconds, which each process would take anew.
CONTEXT.set_forkserver_preload(
    [
        *PRELOAD,
        "gmi_drl.comm.experience.batcher",
        "gmi_drl.comm.shm.board",
        "gmi_drl.comm.transports.ring_ends",
        "gmi_drl.comm.transports.zeromq_ends",
        "gmi_drl.gmi.backends.mps",
    ]
)
