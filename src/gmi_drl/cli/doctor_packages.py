"""Which simulators are installed, in which versions: nothing is imported for it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from gmi_drl.gmi.health.device_health import HealthFinding
from gmi_drl.placement.extras import install

# By adapter, which is also the extra's name.
_ADAPTERS: Final = {
    "mujoco": ("mujoco",),
    "warp": ("mujoco", "warp-lang", "mujoco-warp"),
    "mjx": ("mujoco", "mujoco-mjx", "jax"),
}


def simulator_findings() -> Iterator[HealthFinding]:
    """The adapters whose packages are no part of a plain installation."""
    for adapter, packages in _ADAPTERS.items():
        found = {package: installed(package) for package in packages}
        missing = [package for package, its in found.items() if its is None]
        told = ", ".join(f"{package} {its}" for package, its in found.items() if its is not None)
        if missing:
            yield HealthFinding(
                f"adapter {adapter}", "not here", told or "-",
                f"not installed: {', '.join(missing)}",
                install(adapter),
            )  # fmt: skip
        else:
            yield HealthFinding(f"adapter {adapter}", "ok", told)


def installed(package: str) -> str | None:
    """A package's version; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
