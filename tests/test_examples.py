"""The examples, taken at their word."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hosts
from cronlock.arguments import plain, understand
from cronlock.config import settle
from cronlock.model import Job
from cronlock.testing import poll
from pages import ROOT

EXAMPLES = ROOT / "examples"


def need(program, package):
    if not shutil.which(program):
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(f"needs Debian's package {package}")


@pytest.fixture
def environ(tmp_path):
    """A user's, with cronlock in PATH and locks of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRONLOCK_")}
    path = f"{os.path.dirname(sys.executable)}:{kept['PATH']}"
    return {**kept, "PATH": path, "HOME": str(tmp_path), "CRONLOCK_BACKEND": f"flock://{tmp_path}/locks"}


def test_crontab_accepts_the_crontab(tmp_path):
    need("crontab", "cron")
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


def test_systemd_takes_the_units(tmp_path):
    need("systemd-analyze", "systemd")
    for name in ("cronlock.service", "cronlock.timer"):
        unit = (EXAMPLES / name).read_text().replace("/usr/local/bin/cronlock", str(Path(sys.executable).with_name("cronlock")))
        (tmp_path / name).write_text(unit)
    units = [tmp_path / "cronlock.service", tmp_path / "cronlock.timer"]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"SuccessExitStatus=75", "KillMode=mixed"} <= {*units[0].read_text().splitlines()}


def test_docker_compose_takes_its_file():
    need("docker-compose", "docker-compose")
    done = subprocess.run(["docker-compose", "-f", ROOT / "docker-compose.yml", "config"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all("healthcheck" in service for service in yaml.safe_load(done.stdout)["services"].values())


def lines_of(file):
    """(variables, argv) of each cronlock in an example."""
    text = (EXAMPLES / file).read_text()
    if file == "cronjob.yaml":
        template = yaml.safe_load(text)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        [container] = template["containers"]
        assert template["terminationGracePeriodSeconds"] > Job("x", ("x",)).kill_after
        text = shlex.join(container["command"])
    elif file == "ansible.yml":
        [play] = yaml.safe_load(text)
        jobs = [task["ansible.builtin.cron"] for task in play["tasks"] if "ansible.builtin.cron" in task]
        assert {job["cron_file"] for job in jobs} == {"shop"} and {job["user"] for job in jobs} == {"www-data"}
        text = "\n".join(job["job"] for job in jobs if not job.get("env"))
    return [(line, argv) for line in text.replace("\\\n", " ").splitlines() for argv in called(line)]


def called(line):
    if "cronlock " in line and not line.startswith("#"):
        words = shlex.split(re.sub(r"^\w+=", "", line).strip('"'))
        if "cronlock" in (programs := [word.rpartition("/")[2] for word in words]):
            yield words[programs.index("cronlock") + 1 :]


@pytest.mark.parametrize(
    ("file", "many"), [("cronjob.yaml", 1), ("ansible.yml", 2), ("cron.d.example", 4), ("supercronic.crontab", 3), ("cronlock.service", 1)]
)
def test_every_line_of_an_example_is_one(file, many):
    shown = lines_of(file)
    assert len(shown) == many
    for line, argv in shown:
        given, words = plain(argv)
        values, _ = settle(given, words[0], {})
        job, _ = understand(values, words, {})
        assert job.conflict_code == (0 if file in ("cronjob.yaml", "supercronic.crontab") else 75), line


@pytest.mark.root
@pytest.mark.slow
def test_real_cron_runs_every_line(tmp_path):
    """The crontab and the file for cron.d, installed on a host where each line is due each minute."""
    if reason := hosts.missing():
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(reason)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "cronlock").symlink_to(Path(sys.executable).with_name("cronlock"))
    with hosts.Lab(tmp_path, rate=6) as lab:
        urls = {"redis": lab.redis(), "postgresql": lab.postgresql()}

        def here(text):
            """With this test's stores, stand-ins for the programs, and always the same minute."""
            text = re.sub(r"redis://redis\.internal/0\S*", urls["redis"], text)
            text = re.sub(r"postgresql://\S+", urls["postgresql"], text)
            text = re.sub(r"-b flock: (?!/)", f"-b flock://{tmp_path}/one ", text)
            text = re.sub(r"https://hc-ping.com", "http://127.0.0.1:1", text)  # a monitor that is away costs the job nothing
            text = re.sub(r"(?m)^(?!#)(?:\S+ \S+ \S+ \S+ \S+ +|@hourly)(?=.*cronlock)", "* * * * * ", text)
            text = text.replace("MAILTO=ops@example.org", 'MAILTO=""').replace("www-data", "root").replace("--prefer web1", "--prefer h1")
            text = text.replace("PATH=/usr/local/bin:", f"PATH={programs}:").replace("/backup/", f"{tmp_path}/")
            text = text.replace("nfs:///mnt/shared/locks", f"nfs://{tmp_path}/locks?allow_local=1")
            return re.sub(r"(?<=[ '])(?:/opt/shop/bin|/usr/local/sbin)(?=/)", str(programs), text)

        crontab, cron_d = (here((EXAMPLES / name).read_text()) for name in ("crontab.example", "cron.d.example"))
        crontab = crontab.replace("cd /opt/shop && bin/vacuum-carts >>log/vacuum", f"cd {tmp_path} && bin/vacuum-carts >>vacuum")
        names = set(re.findall(rf"{programs}/([\w-]+)", crontab)) - {"cronlock"} | {"vacuum-carts", "pg_dump"}
        for name in names:
            (programs / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/ran\n" + ("sleep 1000\n" if name == "worker" else ""))
            (programs / name).chmod(0o755)
        (tmp_path / "ran").touch()
        host = lab.add("h1")
        host.start(crontab)
        host.cron_d("shop", cron_d)
        host.run("mkdir", "/run/lock")
        hosts.until(lambda: names <= {*(tmp_path / "ran").read_text().split()}, 60, f"each of {names} has run")
        ran = (tmp_path / "ran").read_text().split()
        hosts.until(lambda: len(lab.attempts()) > 2 * len(names), 60, "each line was answered twice")
        assert {attempt.status for attempt in lab.attempts()} <= {0, 75}
        assert [line for line in lab.output().splitlines() if "heartbeat lost: 127.0.0.1" not in line] == []  # what would be mailed
        assert ran.count("invoices") == 1  # although both files have it, each minute
        assert ran.count("worker") == 1


def test_every_published_port_is_local():
    ports = [line.split('"')[1] for line in (ROOT / "docker-compose.yml").read_text().splitlines() if line.strip().startswith('- "')]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("script", ["try", "test", ".ci/venv.sh", ".ci/run", "examples/script-that-locks-itself.sh"])
def test_shellcheck_has_nothing_to_say(script):
    need("shellcheck", "shellcheck")
    shell = "bash" if script == ".ci/run" else "sh"
    done = subprocess.run(["shellcheck", "-x", f"--shell={shell}", "--severity=warning", ROOT / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
