"""Builds the pack of scripts/gpu-pack: chooses packages, collects their files, and cuts the parts.

It runs in an environment where the project is installed; the pack gets the versions found there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from .aot_kernels import Target, compile_kernels, toolkit

ROOT: Final = Path(__file__).resolve().parents[3]
FORMAT: Final = 1  # of the manifest
EXTRAS: Final = ("lz4", "mujoco", "warp")  # of the project, beside its dependencies
# Packages of a node with torch for CUDA 13, which are never carried, whatever --has says ...
NEVER: Final = ("torch", "numpy", "triton", "cuda-", "cupy-", "nvidia-")
# ... and other packages of the reference node, at most in the versions that ours ask for.
HAS: Final = (
    "contourpy", "cycler", "filelock", "fonttools", "fsspec", "grpcio", "hypothesis", "imageio",
    "jinja2", "kiwisolver", "markdown", "markdown-it-py", "markupsafe", "matplotlib", "mdurl",
    "mpmath", "networkx", "nvidia-ml-py",
    "packaging", "pillow", "protobuf", "psutil", "pygments", "pyparsing",
    "pytest", "pytest-timeout", "python-dateutil", "pyyaml", "rich", "setuptools", "shellingham",
    "six", "sympy", "tensorboard", "typer", "typing-extensions", "werkzeug",
)  # fmt: skip
# Only for drawing windows and pictures; `import mujoco` and mujoco_warp work without them.
LEFT_OUT: Final = ("glfw", "mujoco-studio", "pyopengl", "websockets")
PLATFORMS: Final = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
# Files not needed at run time. warp's headers (warp/native) are needed: NVRTC reads them.
_NO_FOLDERS: Final = {"__pycache__", "tests", "test", "testdata", "test_data"}
_NO_FILES: Final = ("warp/bin/warp-clang.so", "warp/examples/", "mujoco/include/", "mujoco/doc/")
# x86 code is some percent smaller behind a filter that makes its jumps absolute.
_FILTERS: Final = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 128 << 20},
)
_ROOM: Final = 128 << 10  # bytes of a part for its manifest
_BLOCK: Final = 1 << 20
_EXACT: Final = ("warp-lang", "mujoco-warp", "mujoco", "mujoco-core")  # the kernels are theirs


class BuildError(RuntimeError):
    """A pack cannot be built; the message has value, rule and remedy."""


@dataclass(frozen=True)
class Order:
    """Says what to build."""

    out: Path
    part_mib: int
    python: str  # "3.12"
    torch: str  # "2.11"
    envs: tuple[str, ...]
    has: tuple[str, ...]
    target: Target
    jobs: int
    source: str  # digest of the project's files that determine the kernels


@dataclass
class Needs:
    """The packages of a pack, by their canonical names."""

    carried: dict[str, str] = field(default_factory=dict)  # with their versions
    fallback: dict[str, str] = field(default_factory=dict)  # used if the node's are too old
    node: dict[str, str] = field(default_factory=dict)  # the least versions that it must have


def is_never_carried(name: str) -> bool:
    """Tells whether a package belongs to the node's CUDA; nvidia-ml-py is plain Python."""
    if name == "nvidia-ml-py":
        return False
    return any(name == p or (p[-1] == "-" and name.startswith(p)) for p in NEVER)


def needs(order: Order, roots: Iterable[Requirement]) -> Needs:
    """Returns all packages that `roots` require on the target, in this environment's versions."""
    has = {canonicalize_name(name) for name in order.has}
    target = {"python_version": order.python, "python_full_version": f"{order.python}.0"}
    marks: dict[str, str] = {**default_environment(), **target}
    marks |= {"platform_machine": "x86_64", "sys_platform": "linux", "extra": ""}
    result, seen = Needs(), set[tuple[str, str]]()
    queue = [(root, "") for root in roots]
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate(marks | {"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        if is_never_carried(name) or name in has:
            result.node[name] = max(result.node.get(name, "0"), _least(requirement), key=_numbers)
            continue
        for requested in ("", *sorted(requirement.extras)):
            if (name, requested) in seen:
                continue
            seen.add((name, requested))
            distribution = _installed(name)
            result.carried[name] = distribution.version
            queue += [(Requirement(text), requested) for text in distribution.requires or ()]
    for name, least in result.node.items():
        if least != "0" and not is_never_carried(name) and _stands_alone(name):
            result.fallback[name] = _installed(name).version
    return result


def _installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            f"{name}: not installed here; a pack gets the versions of the environment that builds "
            'it. Install the project with pip install -e ".[dev,lz4,warp]".'
        ) from None


def _stands_alone(name: str) -> bool:
    """Tells whether a package can be carried: it is installed, pure Python, and needs no other."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    pure = "Root-Is-Purelib: true" in (distribution.read_text("WHEEL") or "")
    return pure and not [text for text in distribution.requires or () if "extra ==" not in text]


def _least(requirement: Requirement) -> str:
    versions = [s.version for s in requirement.specifier if s.operator in (">=", "~=", "==")]
    return max(versions, key=_numbers, default="0")


def _numbers(version: str) -> tuple[int, ...]:
    digits = version.split("+")[0].split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in digits)


def requirements() -> list[Requirement]:
    """Returns what the project and its extras for a GPU node ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for extra in EXTRAS for text in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in project["dependencies"] + extras]


def wheels(versions: Mapping[str, str], order: Order, folder: Path) -> dict[str, Path]:
    """Returns the wheels of these packages for the target; downloads those not in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: v for name, v in versions.items() if not _wheel(folder, name, v, order)}
    for name, version in missing.items():
        exact = _pip_download(f"{name}=={version}", order, folder)
        if not exact and name in _EXACT:
            raise BuildError(
                f"{name} {version}: pip has no wheel of it for Python {order.python} on Linux "
                "x86-64; the kernels belong to this version. Install another version here, or ask "
                "for another --python."
            )
        if not exact and not _pip_download(name, order, folder):
            raise BuildError(
                f"{name}: pip has no wheel of it for Python {order.python} on Linux x86-64. Is "
                "there a network? Else put a wheel into the folder of wheels, or name the package "
                "in --has if the node has it."
            )
    paths = {}
    for name, version in versions.items():
        wheel = _wheel(folder, name, version, order) or _wheel(folder, name, None, order)
        assert wheel is not None
        paths[name] = wheel
    return paths


def _wheel(folder: Path, name: str, version: str | None, order: Order) -> Path | None:
    """Returns a wheel for the target in `folder`, of any version if `version` is None."""
    tag = "cp" + order.python.replace(".", "")
    for path in sorted(folder.glob("*.whl")):
        wheel_name, wheel_version, _, tags = parse_wheel_filename(path.name)
        fits = any(
            (t.platform == "any" or ("manylinux" in t.platform and t.platform.endswith("x86_64")))
            and (t.interpreter in (tag, "py3", "py2.py3") or t.abi == "abi3")
            for t in tags
        )
        if wheel_name == name and fits and version in (None, str(wheel_version)):
            return path
    return None


def _pip_download(requirement: str, order: Order, folder: Path) -> bool:
    platforms = [f"--platform={platform}_x86_64" for platform in PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
               str(folder), "--only-binary=:all:", "--python-version", order.python,
               "--implementation", "cp", *platforms, requirement]  # fmt: skip
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


def install(wheel: Path, site: Path) -> None:
    """Unpacks a wheel without the files that are not needed at run time."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename
            data = name.split("/", 2)
            if len(data) == 3 and data[0].endswith(".data"):
                if data[1] not in ("purelib", "platlib"):
                    continue  # scripts, headers
                name = data[2]
            folders, file = name.split("/")[:-1], name.split("/")[-1]
            if (
                member.is_dir()
                or _NO_FOLDERS & set(folders)
                or name.startswith(_NO_FILES)
                or file.endswith("_test.py")
            ):
                continue
            target = site / name
            if site.resolve() not in target.resolve().parents:
                raise BuildError(f"{wheel.name}: it has a file {name} outside of itself.")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, _BLOCK)
            target.chmod(0o755 if member.external_attr >> 16 & 0o100 else 0o644)


def build(order: Order, tell: Callable[[str], None]) -> list[Path]:
    """Builds the parts of the pack in `order.out`, in place of those of an earlier pack."""
    if order.part_mib < 1:
        raise BuildError(f"--part-mib {order.part_mib}; must be at least 1.")
    order.out.mkdir(parents=True, exist_ok=True)
    needed = needs(order, requirements())
    tell(f"{len(needed.carried)} packages: {_listed(needed.carried)}")
    tell(f"from the node: {_listed(needed.node)}")
    wheel_of = wheels(needed.carried | needed.fallback, order, order.out / "wheels")
    actual = {name: str(parse_wheel_filename(path.name)[1]) for name, path in wheel_of.items()}
    cache = (order.out / "kernels-cache").resolve()
    kernels = compile_kernels(cache, order.envs, order.target, order.jobs, tell)
    tell(f"{len(kernels)} modules of kernels for sm_{order.target.arch}")
    with tempfile.TemporaryDirectory(dir=order.out, prefix=".new-") as staging:
        inside, parts = Path(staging, "inside"), Path(staging, "parts")
        parts.mkdir()
        for name in needed.carried:
            install(wheel_of[name], inside / "site")
        for name in needed.fallback:
            install(wheel_of[name], inside / "fallback" / name)
        modules = _copy_kernels(kernels, cache, inside / "kernels")
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "target": {
                "python": order.python,
                "machine": "x86_64",
                "arch": order.target.arch,
                "torch": order.torch,
                "cuda": 13,
            },
            "packages": {name: actual[name] for name in sorted(needed.carried)},
            "fallback": {name: actual[name] for name in sorted(needed.fallback)},
            "node": dict(sorted(needed.node.items())),
            "kernels": {
                "envs": list(order.envs),
                "modules": len(kernels),
                "warp": needed.carried.get("warp-lang", ""),
                "driver": order.target.driver,
                "toolkit": toolkit(),
                "source": order.source,
            },
        }
        (inside / "contents.json").write_text(json.dumps({"kernels": modules}, indent=1))
        tell("compressing; of new packages that takes minutes ...")
        write_parts(inside, parts, manifest, order.part_mib, order.out)
        remove_parts(order.out)
        for part in sorted(parts.iterdir()):
            part.rename(order.out / part.name)
    return sorted(order.out.glob("part-*"))


def remove_parts(out: Path) -> None:
    """Removes the parts of an earlier pack; BuildError for anything else with such a name."""
    parts = sorted(out.glob("part-*"))
    for part in parts:
        if not (part / "manifest.json").is_file():
            raise BuildError(f"{part}: no part of a pack. Move it, or build into another --out.")
    for part in parts:
        shutil.rmtree(part)


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}".removesuffix(" 0") for name, version in names.items())


def _copy_kernels(folders: Sequence[Path], cache: Path, to: Path) -> list[str]:
    """Copies binaries and their metadata; the sources are not needed."""
    names = []
    for folder in folders:
        for file in sorted(folder.iterdir()):
            if file.suffix in (".cubin", ".ptx", ".meta"):
                target = to / file.relative_to(cache)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
                names.append(file.relative_to(cache).as_posix())
    return names


def write_parts(
    inside: Path, to: Path, manifest: dict[str, Any], part_mib: int, cache: Path
) -> None:
    """Writes `inside` as one compressed archive, cut into folders `part-N` with a manifest each.

    It is a .tar.xz of two streams. That of the packages takes minutes, so it is kept in `cache`.
    """
    files = [path for path in sorted(inside.rglob("*")) if path.is_file()]
    kernel_roots = ("kernels", "contents.json")
    kernels = [path for path in files if path.relative_to(inside).parts[0] in kernel_roots]
    packages = [path for path in files if path not in set(kernels)]
    unpacked = sum(path.stat().st_size for path in files)
    with tempfile.TemporaryFile(dir=to.parent) as archive:
        with _kept_stream(inside, packages, cache).open("rb") as stream:
            shutil.copyfileobj(stream, archive, _BLOCK)
        _compress(inside, kernels, archive, last=True)
        size = archive.tell()
        max_bytes = (part_mib << 20) - _ROOM
        count = -(-size // max_bytes)
        archive.seek(0)
        pack_digest, parts = hashlib.sha256(), []
        for number in range(1, count + 1):
            folder = to / f"part-{number}"
            folder.mkdir()
            digest, remaining = hashlib.sha256(), -(-size // count)
            with (folder / "data").open("wb") as out:
                while remaining and (block := archive.read(min(remaining, _BLOCK))):
                    out.write(block)
                    digest.update(block)
                    pack_digest.update(block)
                    remaining -= len(block)
            nbytes = (folder / "data").stat().st_size
            parts.append({"bytes": nbytes, "sha256": digest.hexdigest()})
    manifest = manifest | {
        "pack": pack_digest.hexdigest(),
        "bytes": size,
        "unpacked_bytes": unpacked,
        "parts": parts,
    }
    for number in range(1, count + 1):
        text = json.dumps(manifest | {"part": number}, indent=1)
        assert len(text) < _ROOM
        (to / f"part-{number}" / "manifest.json").write_text(text + "\n")


def _kept_stream(inside: Path, files: Sequence[Path], cache: Path) -> Path:
    """Returns these files compressed, from `cache` if it has them; older ones are removed."""
    digest = hashlib.sha256(repr(_FILTERS).encode())
    for path in files:
        digest.update(f"{path.relative_to(inside)} {path.stat().st_mode} ".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    compressed = cache / f"packages-{digest.hexdigest()[:16]}.xz"
    if not compressed.is_file():
        for old in cache.glob("packages-*"):
            old.unlink()
        new = compressed.with_suffix(".new")
        with new.open("wb") as out:
            _compress(inside, files, out, last=False)
        new.rename(compressed)
    return compressed


def _compress(inside: Path, files: Sequence[Path], out: IO[bytes], *, last: bool) -> None:
    """Writes an .xz stream with the files' part of a tar, always with the same bytes."""
    stream = lzma.LZMACompressor(lzma.FORMAT_XZ, filters=_FILTERS)
    for path in files:
        member = tarfile.TarInfo(path.relative_to(inside).as_posix())
        member.size, member.mode = path.stat().st_size, path.stat().st_mode & 0o777
        out.write(stream.compress(member.tobuf(tarfile.PAX_FORMAT)))
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                out.write(stream.compress(block))
        out.write(stream.compress(bytes(-member.size % tarfile.BLOCKSIZE)))
    if last:
        out.write(stream.compress(bytes(2 * tarfile.BLOCKSIZE)))
    out.write(stream.flush())
