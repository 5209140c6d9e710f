"""Shows runs in a browser: command page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import command


@command
def page(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER|RUN]",
            help="Folder that holds runs, or one run's; else runs and searches here.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 8686,
    host: Annotated[
        str, typer.Option(help="Address; one that others reach needs a certificate.")
    ] = "127.0.0.1",
    control: Annotated[
        bool, typer.Option("--control", help="Let the page stop runs and ask for checkpoints.")
    ] = False,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate (PEM), for HTTPS.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
) -> int:
    """Show runs in a browser, while they go on and after.

    Prints a link that lets in who opens it. Reads the folders of runs, and changes nothing.
    """
    from gmi_drl.page.catalog import open_catalog
    from gmi_drl.page.server import Address, serve

    address = Address(host=host, port=port, certificate=certificate, key=key)
    catalog = open_catalog(folder)
    serve(catalog, address, control, lambda link: print(f"page: {link}", flush=True))
    return 0
