"""The wheel and the sdist: built, installed by what people install with, outside of the checkout, and used."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import cronlock
from pages import ROOT

PROGRAMS = Path(sys.executable).parent
OTHERS = ("3.12", "3.13", "3.14", "3.15")
# What depends on the Python most: syntax, processes, signals, the drivers' wheels, what a module brings along. The rest runs on the
# one that made .venv.
SHORT = (
    "five_at_once or success_is_silent or term_ends or sigkill_of_cronlock or ignored_sigchld or ctrl_c or what_the_command_is_told or "
    "as_process_1 or waiter_runs or durations or exits or imports"
)

pytestmark = pytest.mark.slow


def run(*argv, **environ):
    """Output of a command that has to succeed; a network that is not there is no failure of ours, but of CI's."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("CRONLOCK_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(list(map(str, argv)), env=variables | environ, cwd="/", capture_output=True, text=True, timeout=500)
    if done.returncode and re.search("dns error|error sending request|NewConnectionError|Temporary failure", done.stderr):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"needs a package index: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist): the wheel is made from the sdist, so that is whole."""
    place = tmp_path_factory.mktemp("dist")
    run(PROGRAMS / "uv", "build", "--quiet", "--out-dir", place, ROOT)
    [wheel], [sdist] = place.glob("*.whl"), place.glob("*.tar.gz")
    return wheel, sdist


def smoke(binaries, tmp_path):
    """What is installed there works, from anywhere."""
    environ = {"HOME": str(tmp_path), "CRONLOCK_BACKEND": f"flock://{tmp_path}/locks", "PATH": f"{binaries}:/usr/bin:/bin"}
    assert run("cronlock", "--version", **environ) == f"cronlock {cronlock.__version__}\n"
    nested = "cronlock job echo never; echo $?; cronlockctl status job"
    said = run("cronlock", "job", "sh", "-c", nested, **environ)
    assert said.startswith("75\n") and "held" in said
    assert run("cronlockctl", "history", "job", **environ).count("ok") == 1


def test_what_is_in_them(built):
    wheel, sdist = built
    names = set(zipfile.ZipFile(wheel).namelist())
    data = f"cronlock-{cronlock.__version__}.data"
    shared = {f"{data}/data/{path.relative_to(ROOT)}" for path in (ROOT / "share").rglob("*") if path.is_file()}
    assert len(shared) == 9
    assert shared | {f"{data}/scripts/cronlock", f"{data}/scripts/cronlockctl", "cronlock/py.typed"} <= names
    assert not any(name.startswith("tests/") for name in names)
    with tarfile.open(sdist) as packed:
        top = {name.partition("/")[2] for name in packed.getnames()}
    assert {"test", ".ci/run", "docs/generate.py", "share/man/man1/cronlock.1", "tests/test_packaging.py", "LICENSE"} <= top


def test_the_index_would_take_them(built):
    run(PROGRAMS / "twine", "check", "--strict", *built)
    metadata = zipfile.ZipFile(built[0]).read(f"cronlock-{cronlock.__version__}.dist-info/METADATA").decode()
    assert "License-Expression: MIT\n" in metadata and f"Version: {cronlock.__version__}\n" in metadata


def test_every_python_that_is_said_is_tried():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    said = {found[1] for one in classifiers if (found := re.search(r":: (3\.\d+)$", one))}
    assert said <= {"3.11", *OTHERS}


def test_pip_installs_the_wheel(built, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(tmp_path / "venv/bin/pip", "install", "--quiet", built[0])
    smoke(tmp_path / "venv/bin", tmp_path)
    assert run(tmp_path / "venv/bin/python", "-m", "cronlock", "--version").startswith("cronlock ")
    shebang, *script = (tmp_path / "venv/bin/cronlock").read_text().splitlines()
    assert shebang.startswith(f"#!{tmp_path}/venv/bin/python")
    assert script == ["from cronlock.cli import main", "", "main()"]  # what pip writes for an entry point imports re, on each tick
    assert (tmp_path / "venv/share/man/man5/cronlock.toml.5").exists()


def test_uv_installs_the_sdist_as_a_tool(built, tmp_path):
    places = {"UV_TOOL_DIR": f"{tmp_path}/tools", "UV_TOOL_BIN_DIR": f"{tmp_path}/bin", "UV_PYTHON": sys.executable}
    run(PROGRAMS / "uv", "tool", "install", "--compile-bytecode", built[1], **places)
    smoke(tmp_path / "bin", tmp_path)
    assert list((tmp_path / "tools").rglob("cronlock/__pycache__/cli.*.pyc"))  # else each root-less start compiles everything


def test_pipx_installs_it_with_its_man_pages(built, tmp_path):
    places = {"PIPX_HOME": f"{tmp_path}/pipx", "PIPX_BIN_DIR": f"{tmp_path}/bin", "PIPX_MAN_DIR": f"{tmp_path}/man", "HOME": str(tmp_path)}
    run(PROGRAMS / "pipx", "install", "--python", sys.executable, built[0], **places)
    smoke(tmp_path / "bin", tmp_path)
    assert (tmp_path / "man/man1/cronlock.1").exists()


@pytest.mark.parametrize("version", OTHERS)
def test_the_suite_in_short_on_another_python(built, version):
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        pytest.skip(f"this is Python {version}")
    if not (python := _found(version)):
        pytest.skip(f"no Python {version} in PATH, nor in ~/.pyenv")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)  # PostgreSQL's programs are in it, and not for root
        venv = Path(place, "venv")
        run(PROGRAMS / "uv", "venv", "--quiet", "--python", python, venv)
        run(
            PROGRAMS / "uv", "pip", "install", "--quiet", "--python", venv / "bin/python", built[0], "--group", f"{ROOT}/pyproject.toml:dev"
        )
        suite = [ROOT / f"tests/test_{name}.py" for name in ("run", "durations", "exits", "imports")]
        said = run(
            venv / "bin/python",
            "-m",
            "pytest",
            "-q",
            f"--rootdir={ROOT}",
            f"-c{ROOT}/pyproject.toml",
            "-pno:cacheprovider",
            "-k",
            SHORT,
            *suite,
        )
    assert re.search(r"\d\d passed", said), said


def _found(version):
    """An interpreter that answers: a pyenv shim is there for versions that are not."""
    candidates = [shutil.which(f"python{version}"), *sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))]
    for one in filter(None, candidates):
        if subprocess.run([one, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return one
    return None
