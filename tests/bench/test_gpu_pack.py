"""The pack for a GPU node without a network: built small, carried in parts, and refused."""

import importlib.machinery
import importlib.util
import json
import lzma
import os
import resource
import shutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu-pack"
BENCH = ROOT / "bench"
PYTHON = "{}.{}".format(*sys.version_info[:2])
MODULE = "1.19.0/wp_tiny_0123456/wp_tiny_0123456"


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from gpu.pack import builder

    monkeypatch.setattr(builder, "_FILTERS", ({"id": lzma.FILTER_LZMA2, "preset": 0},))
    yield builder
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpu"]:
        del sys.modules[name]


@pytest.fixture
def gpu_pack():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_pack", str(SCRIPT))
    spec = importlib.util.spec_from_loader("gpu_pack", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def manifest(gpu_pack, **target):
    return {
        "format": 1,
        "target": {"python": PYTHON, "machine": "x86_64", "arch": 90, "torch": "2.11", "cuda": 13}
        | target,
        "packages": {"tiny": "1.0"},
        "fallback": {"extensions": "4.16"},
        "node": {"torch": "2.9", "numpy": "1.26", "extensions": "4.16"},
        "kernels": {
            "envs": ["Ant-v5"], "modules": 1, "warp": "1.19.0", "driver": "13.0",
            "toolkit": "13.4", "source": gpu_pack.source_digest(ROOT),
        },
    }  # fmt: skip


@pytest.fixture
def parts(tmp_path, gpu_pack, builder):
    """Make a pack of some parts: a package, one to fall back on, and a module of kernels."""

    def make(name="pack", kernels=True, **target):
        inside, out = tmp_path / f"{name}-inside", tmp_path / name
        files = {
            "site/tiny/__init__.py": f"name = {name!r}".encode(),
            "site/tiny/data": os.urandom(2 << 20),
            "fallback/extensions/extensions.py": b"new = True",
            "contents.json": json.dumps({"kernels": [f"{MODULE}.meta"]}).encode(),
            f"kernels/{MODULE}.meta": b"{}",
        }
        if not kernels:
            files = {path: data for path, data in files.items() if "kernels" not in path}
            files["contents.json"] = b'{"kernels": []}'
        for path, data in files.items():
            (inside / path).parent.mkdir(parents=True, exist_ok=True)
            (inside / path).write_bytes(data)
        out.mkdir()
        builder.write_parts(inside, out, manifest(gpu_pack, **target), 1, tmp_path)
        return sorted(out.iterdir())

    return make


class Node:
    """A node: a Python that sees no packages but these, and an nvidia-smi."""

    def __init__(self, folder):
        self.to = folder / "to"
        self.packages, self.programs = folder / "packages", folder / "programs"
        for made in (self.packages, self.programs):
            made.mkdir()
        self.torch("2.11.0+cu130", "13.0")
        self.package("numpy", "2.3")
        self.package("extensions", "4.20")
        self.gpu("9.0", "13.0")

    def torch(self, version, cuda):
        self.package("torch", version)
        text = f"__version__ = '{version}'\ndebug = False\ncuda: str | None = {cuda!r}\n"
        (self.packages / "torch" / "version.py").write_text(text)

    def package(self, name, version):
        self.forget(name)
        (self.packages / name).mkdir()
        (self.packages / name / "__init__.py").write_text("node = True")
        info = self.packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def forget(self, name):
        for path in self.packages.glob(f"{name}*"):
            shutil.rmtree(path)

    def gpu(self, capability, cuda):
        """nvidia-smi as it answers: a table with the driver's CUDA version, or the query."""
        program = self.programs / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\n[ "$#" = 0 ] && echo "| Driver Version: 580.1  CUDA Version: {cuda} |"\n'
            f'[ "$1" = --query-gpu=compute_cap ] && echo "{capability}"\nexit 0\n'
        )
        program.chmod(0o755)

    def no_gpu(self):
        (self.programs / "nvidia-smi").write_text("#!/bin/sh\necho 'no driver'\nexit 9\n")

    @property
    def env(self):
        return {"PYTHONPATH": str(self.packages), "PATH": f"{self.programs}:{os.environ['PATH']}"}

    def run(self, *arguments, **how):
        """-S: without this environment's packages."""
        command = [sys.executable, "-S", str(SCRIPT), *map(str, arguments), "--to", str(self.to)]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=False, **how
        )

    def unpack(self, *parts, **how):
        for part in parts:
            ran = self.run("unpack", part, **how)
        return ran


@pytest.fixture
def node(tmp_path):
    folder = tmp_path / "node"
    folder.mkdir()
    return Node(folder)


# ---- what works


def test_parts_are_kept_one_by_one_and_the_last_one_unpacks(node, parts):
    first, *others = parts()
    assert len(others) == 2

    kept = [node.unpack(part) for part in reversed(others)]
    assert [ran.returncode for ran in kept] == [3, 3]
    assert "missing: part-1, part-2" in kept[0].stdout
    assert node.run("check").returncode == 3
    assert not (node.to / "env.sh").exists()
    complete = node.unpack(first)

    assert complete.returncode == 0, complete.stderr
    assert "1 modules of kernels of Ant-v5 for sm_90" in complete.stdout
    assert "note" not in complete.stdout
    assert node.run("check").returncode == 0


def test_env_sh_gives_the_pack_and_leaves_the_nodes_packages_in_front(node, parts):
    node.unpack(*parts())
    look = (
        "import os, tiny, torch, numpy, extensions, json;"
        "print(json.dumps([tiny.__file__, torch.node, numpy.node, extensions.node,"
        " os.environ['WARP_CACHE_PATH']]))"
    )
    script = f'. {node.to}/env.sh; . {node.to}/env.sh; exec "$0" -S -c "$1"'
    ran = subprocess.run(
        ["sh", "-c", script, sys.executable, look],
        env=node.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    file, *nodes, cache = json.loads(ran.stdout)
    assert Path(file).is_relative_to(node.to)
    assert nodes == [True, True, True]
    assert (Path(cache) / f"{MODULE}.meta").is_file()
    assert os.access(cache, os.W_OK)


def test_env_sh_puts_a_newer_package_before_one_of_the_nodes_that_is_too_old(node, parts):
    made = parts()
    node.package("extensions", "4.9")
    node.unpack(*made)
    script = f'. {node.to}/env.sh; exec "$0" -S -c "import extensions; print(extensions.new)"'
    command = ["sh", "-c", script, sys.executable]
    ran = subprocess.run(command, env=node.env, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"
    # Also where env.sh has been read, and the package of the pack is what Python finds first.
    before = (node.to / "env.sh").read_text()
    script = f'. {node.to}/env.sh; exec "$0" -S {SCRIPT} unpack {made[0]} --to {node.to}'
    command = ["sh", "-c", script, sys.executable]
    subprocess.run(command, env=node.env, capture_output=True, check=True)
    assert (node.to / "env.sh").read_text() == before


def test_a_pack_without_kernels_gives_warp_a_folder_for_its_own(node, parts):
    ran = node.unpack(*parts(kernels=False))
    assert ran.returncode == 0, ran.stderr
    assert list((node.to / "pack" / "kernels").iterdir()) == []


def test_what_neither_the_node_nor_the_pack_has_is_named_with_what_to_add(gpu_pack, node, parts):
    made = parts()
    for path in made:
        text = json.loads((path / "manifest.json").read_text())
        text["node"] |= {"rich": "13.9", "typer": "0.15"}
        (path / "manifest.json").write_text(json.dumps(text))
    ran = node.unpack(*made)
    assert ran.returncode == 2
    assert "unpacked, but this node lacks rich typer, which the project needs" in ran.stderr
    assert "--has-not rich typer" in ran.stderr
    assert (node.to / "env.sh").exists()
    node.package("rich", "14.0")
    node.package("typer", "0.16")
    assert node.unpack(made[0]).returncode == 0


def test_unpacking_again_changes_nothing(node, parts):
    made = parts()
    node.unpack(*made)
    before = (node.to / "pack" / "site" / "tiny" / "data").stat()
    shutil.rmtree(made[1] / "..", ignore_errors=True)  # every part but what is asked for is gone
    (made[0]).mkdir(parents=True)
    (made[0] / "manifest.json").write_text((node.to / "pack" / "manifest.json").read_text())
    again = node.unpack(made[0])
    assert again.returncode == 0, again.stderr
    assert (node.to / "pack" / "site" / "tiny" / "data").stat() == before


@pytest.mark.parametrize("name", ["pack", "parts"])
def test_a_folder_that_holds_something_else_is_not_replaced(node, parts, name):
    mine = node.to / name / "thesis.tex"
    mine.parent.mkdir(parents=True)
    mine.touch()
    ran = node.unpack(*parts())
    assert ran.returncode == 2
    assert f"{mine.parent}: has files, and no pack's manifest" in ran.stderr
    assert mine.exists()


def test_a_node_without_nvidia_smi_is_taken_with_a_note(node, parts):
    node.no_gpu()
    ran = node.unpack(*parts())
    assert ran.returncode == 0, ran.stderr
    assert "nvidia-smi does not answer" in ran.stdout


def test_a_newer_driver_is_said_to_make_warp_compile(node, parts):
    node.gpu("9.0", "13.4")
    ran = node.unpack(*parts())
    assert ran.returncode == 0
    assert "warp will compile them anew. Build with --driver 13.4" in ran.stdout


# ---- what is refused


def other_torch(node):
    node.torch("2.9.1+cu130", "13.0")


def other_cuda(node):
    node.torch("2.11.0+cu126", "12.6")


def torch_without_cuda(node):
    node.torch("2.11.0+cpu", None)


def other_gpu(node):
    node.gpu("8.0", "13.0")


@pytest.mark.parametrize(
    ("change", "target", "says"),
    [
        (None, {"python": "3.9"}, f"this is cpython {PYTHON}; the pack is for CPython 3.9"),
        (None, {"machine": "aarch64"}, "the pack is for Linux aarch64"),
        (None, {"arch": 80}, "compute capability 9.0; the pack's kernels are for 8.0"),
        (other_gpu, {}, "compute capability 8.0; the pack's kernels are for 9.0"),
        (other_torch, {}, "torch is 2.9.1+cu130"),
        (other_cuda, {}, "is built for CUDA 12.6; must be CUDA 13"),
        (torch_without_cuda, {}, "is built for no CUDA; must be CUDA 13"),
        (lambda node: node.forget("torch"), {}, "has no torch"),
        (lambda node: node.forget("numpy"), {}, "has no numpy"),
    ],
)
def test_a_node_for_which_the_pack_is_not_is_refused_at_once(node, parts, change, target, says):
    if change is not None:
        change(node)
    ran = node.unpack(parts(**target)[0])
    assert ran.returncode == 2
    assert says in ran.stderr
    assert not node.to.exists()


def cut(part):
    data = (part / "data").read_bytes()
    (part / "data").write_bytes(data[:-100])


def damage(part):
    data = bytearray((part / "data").read_bytes())
    data[1000] ^= 1
    (part / "data").write_bytes(data)


def cut_manifest(part):
    text = (part / "manifest.json").read_text()
    (part / "manifest.json").write_text(text[: len(text) // 2])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (cut, "it was cut short on its way. Carry it again"),
        (damage, "it was damaged on its way. Carry it again"),
        (lambda part: (part / "data").unlink(), "not there; a part is manifest.json and data"),
        (lambda part: (part / "manifest.json").unlink(), "Carry the whole folder"),
        (cut_manifest, "it is cut short or not ours"),
    ],
)
def test_a_part_that_is_not_whole_is_refused_and_not_kept(node, parts, spoil, says):
    made = parts()
    spared = shutil.copytree(made[1], made[1].with_name("spared"))
    spoil(made[1])
    node.unpack(made[0])
    ran = node.unpack(made[1])
    assert ran.returncode == 2
    assert says in ran.stderr
    assert node.unpack(made[2]).returncode == 3
    assert node.unpack(spared).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["waiting for more", "complete"])
def test_a_part_of_another_pack_is_refused(node, parts, whole):
    made, others = parts("pack"), parts("other")
    node.unpack(*(made if whole else made[:1]))
    ran = node.unpack(others[1])
    assert ran.returncode == 2
    assert f"or remove {node.to}" in ran.stderr
    assert node.unpack(*made).returncode == 0


def test_parts_of_different_archives_do_not_pass_as_one(node, parts):
    """A manifest that lies about what belongs together is found out by the archive itself."""
    made, others = parts("pack"), parts("other")
    lie = json.loads((made[0] / "manifest.json").read_text())
    truth = json.loads((others[0] / "manifest.json").read_text())
    lie["parts"][1] = truth["parts"][1]
    for number, part in enumerate(made, 1):
        (part / "manifest.json").write_text(json.dumps(lie | {"part": number}))
    shutil.copy(others[1] / "data", made[1] / "data")
    ran = node.unpack(*made)
    assert ran.returncode == 2
    assert "are not those of one archive" in ran.stderr
    assert not (node.to / "pack").exists()


def test_a_disk_that_fills_up_is_told_and_leaves_nothing_half_done(node, parts):
    made = parts()

    def limit():
        """Of a file: writing more fails as on a full disk."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    node.unpack(*made[:2])
    full = node.unpack(made[2], preexec_fn=limit)
    assert full.returncode == 2
    assert "the disk or the quota is full. Make room" in full.stderr
    assert sorted(path.name for path in node.to.iterdir()) == ["lock", "parts"]
    assert node.unpack(made[2]).returncode == 0


def test_a_disk_without_room_is_refused_before_anything_is_written(
    gpu_pack, node, parts, monkeypatch, capsys
):
    made = parts()
    monkeypatch.setattr(gpu_pack, "check_node", lambda manifest: [])
    usage = types.SimpleNamespace(free=1 << 20)
    monkeypatch.setattr(gpu_pack.shutil, "disk_usage", lambda path: usage)
    assert gpu_pack.main(["unpack", str(made[0]), "--to", str(node.to)]) == 2
    assert "1 MiB are free; the pack needs 5 MiB" in capsys.readouterr().err
    assert [path.name for path in node.to.iterdir()] == ["lock"]


def test_check_misses_kernels_that_are_gone(node, parts):
    node.unpack(*parts())
    (node.to / "pack" / "kernels" / f"{MODULE}.meta").unlink()
    ran = node.run("check")
    assert ran.returncode == 2
    assert "is gone. Remove" in ran.stderr


def test_check_of_an_empty_folder_says_how_to_fill_it(node):
    ran = node.run("check")
    assert ran.returncode == 2
    assert "no pack there. Unpack one" in ran.stderr


def test_a_tree_with_other_environments_than_the_packs_is_told(gpu_pack, node, parts, monkeypatch):
    honest = gpu_pack.source_digest(ROOT)
    monkeypatch.setattr(gpu_pack, "source_digest", lambda root: honest[::-1])
    ran = node.unpack(*parts())
    assert ran.returncode == 0
    assert "roles/envs is not as it was when the pack was built" in ran.stdout


# ---- how it is built


@pytest.fixture
def order(tmp_path, builder):
    return builder.Order(
        out=tmp_path / "out", part_mib=50, python="3.12", torch="2.11", envs=("Ant-v5",),
        has=builder.HAS, target=builder.Target(), jobs=1, source="",
    )  # fmt: skip


def test_no_part_is_larger_than_asked_for_manifest_included(parts):
    made = parts()
    sizes = [sum(file.stat().st_size for file in part.iterdir()) for part in made]
    assert max(sizes) <= 1 << 20
    assert max(sizes) - min(sizes) < 4096


def test_the_packs_packages_are_the_projects_without_the_nodes(builder, order):
    found = builder.needs(order, builder.requirements())
    assert {"pydantic", "pydantic-core", "gymnasium", "pyzmq", "mujoco", "mujoco-warp"} <= (
        found.carried.keys()
    )
    assert not [name for name in found.carried | found.fallback if builder.is_never_carried(name)]
    assert not found.carried.keys() & set(builder.HAS)
    assert {"torch", "numpy", "nvidia-ml-py", "rich"} <= found.node.keys()
    assert "typing-extensions" in found.fallback  # pydantic asks for a new one


def test_what_the_node_lacks_is_carried_with_what_it_needs(builder, order, monkeypatch):
    from dataclasses import replace

    without = replace(order, has=tuple(name for name in order.has if name not in ("rich", "mdurl")))
    found = builder.needs(without, builder.requirements())
    assert "rich" in found.carried
    assert "markdown-it-py" in found.node  # of rich, on the node


def make_wheel(folder, name, version, files=(), tag="py3-none-any"):
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
        for path in files:
            wheel.writestr(path, "x")
    return folder / f"{name}-{version}-{tag}.whl"


@pytest.mark.slow
def test_wheels_are_of_the_target_and_of_the_versions_here(builder, order, tmp_path, monkeypatch):
    shelf, got = tmp_path / "shelf", tmp_path / "got"
    make_wheel(shelf, "tiny", "1.0")
    make_wheel(shelf, "tiny", "2.0")
    make_wheel(shelf, "fast", "1.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    make_wheel(shelf, "fast", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    make_wheel(shelf, "late", "3.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    found = builder.wheels({"tiny": "1.0", "fast": "1.0", "late": "2.5"}, order, got)
    assert {name: path.name for name, path in found.items()} == {
        "tiny": "tiny-1.0-py3-none-any.whl",
        "fast": "fast-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "late": "late-3.0-py3-none-any.whl",  # there is no other
    }
    with pytest.raises(builder.BuildError, match=r"missing: pip has no wheel of it for Python"):
        builder.wheels({"missing": "1.0"}, order, got)
    with pytest.raises(builder.BuildError, match=r"the kernels belong to this version"):
        builder.wheels({"warp-lang": "1.19.0"}, order, got)


def test_a_wheel_is_unpacked_without_what_nothing_needs(builder, tmp_path):
    kept = ["warp/__init__.py", "warp/bin/warp.so", "warp/native/builtin.h", "tiny/attest.py"]
    left = ["warp/bin/warp-clang.so", "warp/tests/a.py", "tiny/bindings_test.py",
            "warp/examples/b.py", "tiny-1.0.data/scripts/run"]  # fmt: skip
    data = ["tiny-1.0.data/purelib/tiny/extra.py"]
    wheel = make_wheel(tmp_path, "tiny", "1.0", [*kept, *left, *data])
    builder.install(wheel, tmp_path / "site")
    found = {p.relative_to(tmp_path / "site").as_posix() for p in (tmp_path / "site").rglob("*.*")}
    files = {name for name in found if (tmp_path / "site" / name).is_file()}
    info = {f"tiny-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")}
    assert files - info - {"tiny-1.0.dist-info/WHEEL"} == {*kept, "tiny/extra.py"}


def test_only_parts_of_a_pack_are_replaced_by_a_new_one(builder, tmp_path):
    for name in ("part-1/manifest.json", "part-2/manifest.json", "part-one/thesis.tex"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with pytest.raises(builder.BuildError, match="part-one: no part of a pack"):
        builder.remove_parts(tmp_path)
    assert len(list(tmp_path.glob("*/*"))) == 3
    (tmp_path / "part-one").rename(tmp_path / "one")
    builder.remove_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_packages_are_compressed_once(builder, gpu_pack, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    for name in ("site/a.py", f"kernels/{MODULE}.meta"):
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_text(name)
    compressed = []
    compress = builder._compress

    def count(inside, files, out, *, last):
        compressed.append([file.name for file in files])
        compress(inside, files, out, last=last)

    monkeypatch.setattr(builder, "_compress", count)
    for number in (1, 2):
        out = tmp_path / f"out{number}"
        out.mkdir()
        builder.write_parts(inside, out, manifest(gpu_pack), 1, tmp_path)
    assert compressed == [["a.py"], ["wp_tiny_0123456.meta"], ["wp_tiny_0123456.meta"]]
    same = [
        json.loads((tmp_path / o / "part-1/manifest.json").read_text()) for o in ("out1", "out2")
    ]
    assert same[0] == same[1]


# ---- kernels

TINY = """
import json, sys
from dataclasses import asdict
import warp as wp
from gpu.pack import aot_kernels

wp.config.log_level = wp.LOG_ERROR

@wp.kernel(enable_backward=False)
def scale(a: wp.array(dtype=float), factor: float):
    a[wp.tid()] *= factor

def launch(device):
    a = wp.zeros(256, dtype=float, device=device)
    for block_dim in (64, 256, 64):
        wp.launch(scale, dim=256, inputs=[a, 2.0], block_dim=block_dim, device=device)

target = aot_kernels.Target(arch=90)
if sys.argv[1] == "cpu":
    with aot_kernels.watched() as found:
        launch("cpu")
elif sys.argv[1] == "compile":
    found = aot_kernels.traced(launch, target, compile=True)
else:
    found = aot_kernels.taken(launch, target)
print(json.dumps([asdict(one) for one in found]))
"""


@pytest.fixture
def tiny(tmp_path):
    """Launch a small kernel in a process of its own; what warp loaded for it."""
    pytest.importorskip("warp")

    def run(what, folder="here"):
        (tmp_path / folder).mkdir(exist_ok=True)
        script = tmp_path / folder / "tiny.py"
        script.write_text(TINY)
        env = os.environ | {
            "PYTHONPATH": f"{BENCH}:{ROOT / 'src'}", "WARP_CACHE_PATH": str(tmp_path / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        command = [sys.executable, str(script), what]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_is_compiled_and_what_is_found_is_told_apart(tiny):
    assert [one["compiled"] for one in tiny("cpu")] == [True]
    assert [one["compiled"] for one in tiny("cpu")] == [False]


@pytest.mark.parametrize(("flag", "code"), [([], 0), (["--must-be-cached"], 1)])
def test_a_compiled_module_is_named_in_the_line(builder, monkeypatch, capsys, flag, code):
    from gpu.pack import kernel_cache

    loaded = [
        kernel_cache.Loaded("wp_a_1", "wp_a_1.sm90.cubin", 256, False, 0.001),
        kernel_cache.Loaded("wp_b_2", "wp_b_2.sm90.cubin", 32, True, 12.5),
    ]
    monkeypatch.setattr(kernel_cache, "observed", lambda *given: kernel_cache.summary(loaded))
    assert kernel_cache.main(["--device", "cpu", *flag]) == code
    line = json.loads(capsys.readouterr().out)
    assert (line["modules"], line["from_cache"], line["compile_s"]) == (2, 1, 12.5)
    assert line["compiled"] == [{"module": "wp_b_2", "block_dim": 32, "seconds": 12.5}]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_without_a_gpu_it_is_said_that_no_kernel_is_loaded(builder, capsys):
    from gpu.pack import kernel_cache

    assert kernel_cache.main([]) == 4
    assert "no GPU here: no kernel is loaded" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_warp_takes_kernels_that_were_compiled_without_a_gpu(tiny, tmp_path):
    cache = tmp_path / "cache"
    made = tiny("compile")
    assert [(one["block_dim"], one["compiled"]) for one in made] == [(64, True), (256, True)]
    for one in made:
        assert one["file"] == f"{one['module']}.sm90.cubin"
        [binary] = cache.glob(f"*/{one['module']}/{one['file']}")
        assert binary.read_bytes()[:4] == b"\x7fELF"

    found = tiny("load", "elsewhere")  # names do not depend on where the source is
    assert [(one["file"], one["compiled"]) for one in found] == [
        (one["file"], False) for one in made
    ]

    binary.unlink()  # of block_dim 256
    found = tiny("load")
    assert [one["compiled"] for one in found] == [False, True]


LAUNCHES = """
import json, sys
import torch, warp as wp
from gpu.pack import aot_kernels

keys = set()
launch = wp.launch
def record(kernel, *args, **kw):
    keys.add(kernel.key)
    return launch(kernel, *args, **kw)
wp.launch = record
import warp._src.context
warp._src.context.launch = record  # launch_tiled's

if sys.argv[1] == "cpu":
    from gmi_drl.roles.envs import make_env
    env = make_env("Ant-v5", 4, adapter="warp")
    env.reset()
    for _ in range(3):
        env.step(torch.ones(4, 8))
else:
    way = {"num_env": 4, "steps": "sp", "conditional": True}
    aot_kernels.traced(
        lambda device: aot_kernels.run_environment(device, "Ant-v5", way),
        aot_kernels.Target(), compile=False)
print(json.dumps(sorted(keys)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_offline_device_launches_what_the_cpu_launches(tmp_path):
    """All of it, and besides what mujoco_warp launches on CUDA alone."""
    pytest.importorskip("mujoco_warp")
    (tmp_path / "launches.py").write_text(LAUNCHES)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    env = os.environ | {"PYTHONPATH": f"{BENCH}:{ROOT / 'src'}"}
    env.setdefault("WARP_CACHE_PATH", str(Path(home) / "warp"))
    keys = {}
    for device in ("cpu", "offline"):
        command = [sys.executable, str(tmp_path / "launches.py"), device]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        keys[device] = set(json.loads(ran.stdout.splitlines()[-1]))
    assert len(keys["cpu"]) > 50, keys
    assert keys["cpu"] <= keys["offline"]
