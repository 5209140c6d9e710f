"""`python -m gmi_drl` is `gmi-drl`."""

from .cli import main

raise SystemExit(main())
