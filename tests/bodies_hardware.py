"""What GMIs do in tests on a GPU."""

import os

import gmi_drl
from gmi_drl.gmi import cuda_driver
from gmi_drl.placement.slicing import memory_share


class OnGpu:
    """Tells what it sees of its slice, and that it can compute there."""

    def __init__(self, spec):
        self.spec = spec

    def slice(self):
        import torch

        ones = torch.ones(64, 64, device="cuda")
        assert float((ones @ ones).sum()) == 64.0**3
        return os.getpid(), cuda_driver.mps_enabled(), cuda_driver.sm_count(), self._green_sms()

    def _green_sms(self):
        if self.spec.backend != "green":
            return None
        from gmi_drl.gmi.backends import green

        return green._thread_state.green.sm_count


class Greedy(gmi_drl.DRL_role):
    """GMI 0 asks for a quarter more than its process may have."""

    def GMI_run(self):
        import torch

        if self.GMI_id == 0:
            layout = self.mgr.layout
            fellows = layout.gmis if layout.gmi(0).backend == "green" else layout.gmis[:1]
            share = sum(memory_share(layout, gmi.gmi_id).nbytes for gmi in fellows)
            torch.empty(share * 5 // 4, dtype=torch.uint8, device=self.mgr.context.device)
