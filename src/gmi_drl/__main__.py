"""`python -m gmi_drl` is `gmi-drl`."""

from .cli.main import main

raise SystemExit(main())
