"""Gives uPlot, which draws the curves of pages; its licence and checksums lie beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

VERSION: Final = "1.6.32"
SCRIPT: Final = Path(__file__).parent / "uPlot.iife.min.js"  # defines `uPlot`
STYLE: Final = Path(__file__).parent / "uPlot.min.css"
