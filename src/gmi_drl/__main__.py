"""Runs the command `gmi-drl` as `python -m gmi_drl`."""

from .cli.main import main

raise SystemExit(main())
