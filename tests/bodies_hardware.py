"""What GMIs do in tests on a GPU."""

import os

from gmi_drl.gmi import cuda_driver


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
        from gmi_drl.gmi import green

        return green._mine.green.sm_count
