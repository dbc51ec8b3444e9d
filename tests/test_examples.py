"""The examples, taken at their word."""

import importlib
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from cronlock.testing import poll
from pages import PAGES, ROOT, blocks

EXAMPLES = ROOT / "examples"
CHECKED = [(page.name, text) for page in PAGES for text, marked in blocks(page, "sh") if marked]


@pytest.fixture
def environ(tmp_path):
    """A user's, with cronlock in PATH and locks of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRONLOCK_")}
    path = f"{os.path.dirname(sys.executable)}:{kept['PATH']}"
    return {**kept, "PATH": path, "HOME": str(tmp_path), "CRONLOCK_BACKEND": f"flock://{tmp_path}/locks"}


def test_crontab_accepts_the_crontab(tmp_path):
    if not shutil.which("crontab"):
        pytest.skip("needs Debian's package cron")
    refused = []
    for dry_run in ("-n", "-T"):  # Debian's; cronie's
        done = subprocess.run(["crontab", dry_run, EXAMPLES / "crontab.example"], capture_output=True, text=True)
        if done.returncode == 0:
            return
        if "invalid option" not in done.stderr:
            refused.append(done.stderr)
    if not refused:
        pytest.skip("this crontab(1) has no dry run")
    pytest.fail("".join(refused))


def test_the_crontab_escapes_every_percent():
    for line in (EXAMPLES / "crontab.example").read_text().splitlines():
        assert line.startswith("#") or "%" not in line.replace(r"\%", ""), line


def test_the_script_that_locks_itself(tmp_path, environ):
    script = tmp_path / "import-orders.sh"
    text = (EXAMPLES / "script-that-locks-itself.sh").read_text()
    assert "sleep 1\n" in text
    script.write_text(text.replace("sleep 1\n", f"echo run >>{tmp_path}/log; until [ -e {tmp_path}/enough ]; do sleep 0.05; done\n"))
    script.chmod(0o755)
    subprocess.run(["sh", "-n", script], check=True)

    first = subprocess.Popen([script, "a b", "c"], env=environ, stdout=subprocess.PIPE, text=True)
    poll(lambda: (tmp_path / "log").exists())
    second = subprocess.run([script], env=environ, capture_output=True, text=True)
    assert (second.returncode, second.stdout, second.stderr) == (75, "", "")
    (tmp_path / "enough").touch()
    out, _ = first.communicate(timeout=20)
    assert first.returncode == 0 and "a b" in out
    assert (tmp_path / "log").read_text() == "run\n"


@pytest.mark.parametrize("name", ["cronlock.service", "cronlock.timer"])
def test_systemd_reads_the_units(name):
    lines = [line for line in (EXAMPLES / name).read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.startswith("[") or "=" in line for line in lines)
    if name.endswith(".service"):
        assert {"SuccessExitStatus=75", "KillMode=mixed"} <= set(lines)


@pytest.mark.parametrize("path", [EXAMPLES / "cronjob.yaml", ROOT / "docker-compose.yml"], ids=lambda path: path.name)
def test_yaml_is_yaml(path):
    text = path.read_text()
    assert "\t" not in text
    assert all((len(line) - len(line.lstrip())) % 2 == 0 for line in text.splitlines())
    if not find_spec("yaml"):
        return
    whole = importlib.import_module("yaml").safe_load(text)
    if path.name == "docker-compose.yml":
        assert all("healthcheck" in service for service in whole["services"].values())
    else:
        [container] = whole["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        assert container["command"][:3] == ["cronlock", "-E", "0"]


def test_every_published_port_is_local():
    ports = [line.split('"')[1] for line in (ROOT / "docker-compose.yml").read_text().splitlines() if line.strip().startswith('- "')]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize(("page", "script"), CHECKED, ids=[f"{page}-{i}" for i, (page, _) in enumerate(CHECKED)])
def test_a_shown_script_runs(page, script, tmp_path, environ):
    started = time.monotonic()
    done = subprocess.run(["sh", "-euc", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("script", ["try", "test", ".ci/venv.sh"])
def test_the_scripts_are_plain_sh(script):
    subprocess.run(["sh", "-n", ROOT / script], check=True)
