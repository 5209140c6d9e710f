"""A tuner in a process of its own, which may be killed. Arguments: those of `gmi-drl tune`."""

import sys

import private_leases  # noqa: F401
from gmi_drl.cli import main

if __name__ == "__main__":
    code = main.main(["tune", *sys.argv[1:]])
    assert "torch" not in sys.modules, "the driver has imported torch"
    sys.exit(code)
