"""The config file: precedence, names for backends, references, and what is refused in words."""

from __future__ import annotations

import os
import subprocess

import pytest

from cronlock import config
from cronlock.config import expanded, has_password, settle
from cronlock.errors import ConfigError, PermissionDenied, UsageError
from cronlock.options import OPTIONS
from fixtures_store import CRONLOCK

TEXT = """
[backends]
main = "redis://127.0.0.1:1/0"
secret = "redis://u:${PW}@127.0.0.1:1/0"

[defaults]
backend = "main"
ttl = 90
verbose = true
prefer = ["a", "b"]

[locks."nightly report"]
ttl = "5m"
heartbeat = "${PING}"
"""


@pytest.fixture
def file(tmp_path):
    def write(text=TEXT, *, mode=0o600):
        path = tmp_path / "c.toml"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write


def values(path, name="job", given=(), **environ):
    return settle({"config": path, **dict(given)}, name, environ)


def test_each_layer_over_the_one_below(file):
    path = file()
    found, sources = values(path)
    assert (found["ttl"], sources["ttl"]) == (90.0, f"{path} [defaults]")
    assert (found["kill_after"], sources["kill_after"]) == (10.0, "built in")
    assert (found["verbose"], found["prefer"]) == (True, ("a", "b"))
    found, sources = values(path, "nightly report", PING="https://hc/x?a=b")
    assert (found["ttl"], sources["ttl"]) == (300.0, f'{path} [locks."nightly report"]')
    assert found["heartbeat"] == ("https://hc/x?a=b",)
    found, sources = values(path, CRONLOCK_TTL="7", CRONLOCK_VERBOSE="0")
    assert (found["ttl"], sources["ttl"], found["verbose"]) == (7.0, "the environment", False)
    found, sources = values(path, given={"ttl": 8.0}, CRONLOCK_TTL="7")
    assert (found["ttl"], sources["ttl"]) == (8.0, "the command line")


def test_an_option_overrules_its_opposite_below(file):
    """`-n` in a line means that line, whatever all others have; both in one place are left for the usage error."""
    path = file('[defaults]\nwait = "5m"\nquiet = true\n[locks.eager]\nnonblock = true\n[locks.both]\nnonblock = true\nwait = "1m"\n')

    def kept(*layers, **environ):
        found, sources = values(path, *layers, **environ)
        return found["nonblock"], found["wait"], found["verbose"], found["quiet"], sources["wait"]

    assert kept() == (False, 300.0, False, True, f"{path} [defaults]")
    assert kept("job", {"nonblock": True, "verbose": True}) == (True, 0.0, True, False, "built in")
    assert kept("eager") == (True, 0.0, False, True, "built in")
    assert kept("eager", {"wait": 7.0}) == (False, 7.0, False, True, "the command line")
    assert kept("both")[:2] == (True, 60.0)
    assert kept(CRONLOCK_NONBLOCK="1")[:2] == (True, 0.0)
    assert kept("job", {"wait": 7.0}, CRONLOCK_NONBLOCK="1")[:2] == (False, 7.0)


def test_a_name_stands_for_a_url(file):
    path = file()
    assert values(path)[0]["backend"] == "redis://127.0.0.1:1/0"
    assert values(path, CRONLOCK_BACKEND="flock:")[0]["backend"] == "flock:"
    url, source = (found["backend"] for found in values(path, given={"backend": "secret"}, PW="a/b@c"))
    assert url == "redis://u:a%2Fb%40c@127.0.0.1:1/0"
    assert source == f"{path} [backends] secret, named by the command line"
    with pytest.raises(UsageError, match=r"no backend 'mian' in the config's \[backends\], which has main, secret"):
        values(path, given={"backend": "mian"})
    assert values("/dev/null", given={"backend": "mian"})[0]["backend"] == "mian"  # the registry says what a URL looks like


def test_the_users_is_laid_over_the_systems(tmp_path, monkeypatch):
    system = tmp_path / "system.toml"
    system.write_text('[defaults]\nttl = 70\nwait = "5m"\n[locks.job]\njitter = 3\n')
    monkeypatch.setattr(config, "SYSTEM", str(system))
    (tmp_path / "cronlock").mkdir()
    (tmp_path / "cronlock/config.toml").write_text("[defaults]\nttl = 80\n[locks.job]\nmin-hold = 4\n")
    found, _ = settle({}, "job", {"XDG_CONFIG_HOME": str(tmp_path)})
    assert (found["ttl"], found["wait"], found["jitter"], found["min_hold"]) == (80.0, 300.0, 3.0, 4.0)
    (tmp_path / ".config").symlink_to(".")
    assert settle({}, "job", {"HOME": str(tmp_path)})[0]["ttl"] == 80.0
    found, _ = settle({"config": str(system)}, "job", {"HOME": str(tmp_path)})
    assert (found["ttl"], found["min_hold"]) == (70.0, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[defaults]\ntll = 5", r"\[defaults\]: 'tll' is unknown, did you mean ttl\?"),
        ("[defaults]\nmax_runtime = 5", r"'max_runtime' is unknown, did you mean max-runtime\?"),
        ("[default]\nttl = 5", r"table 'default' is unknown, did you mean defaults\?"),
        ("ttl = 5", r"table 'ttl' is unknown \(known: backends, defaults, locks\)"),
        ("[locks.job]\nzzz = 5", r"\[locks.\"job\"\]: 'zzz' is unknown \(known: backend, ttl,"),
        ("[locks]\njob = 5", r"\[locks\]: job is a table: write \[locks.\"job\"\]"),
        ("defaults = 5", r"defaults is a table: write \[defaults\]"),
        ("[backends]\nmain = 5", r"\[backends\]: main = … must be a name without colon and a URL"),
        ('[backends]\nmain = "nonsense"', r"must be a name without colon and a URL"),
        ('[backends]\n"a:b" = "flock:"', r"must be a name without colon and a URL"),
        ("[defaults]\nprefer = 5", r"\[defaults\] prefer: a list of strings is wanted"),
        ("[defaults]\nttl = true", r"\[defaults\] ttl: True is no value for it"),
        ("[defaults]\nttl = [5]", r"\[defaults\] ttl: \[5\] is no value for it"),
        ('[defaults]\nttl = "x"', r"\[defaults\] ttl: 'x' is no duration"),
        ('[defaults]\nonce-per = "7m"', r"\[defaults\] once-per: 7m: a period must divide an hour"),
        ("[defaults]\nttl = -5", r"\[defaults\] ttl: '-5' is no duration"),
        ("[defaults]\nprefer = [1]", r"\[defaults\] prefer: a list of strings is wanted"),
        ('[defaults]\nconfig = "x"', r"'config' is unknown"),
        ('[defaults]\nbackend = "${NOT_SET}"', r"\$\{NOT_SET\} is not set in the environment"),
        ('[defaults]\nbackend = "${"', r"\$\{ without \}"),
        ("[defaults", r"is no TOML: "),
        ("\ufffd = \x00", r"is no TOML: "),
    ],
)
def test_what_is_wrong_is_said_with_its_place(file, text, said):
    path = file(text)
    with pytest.raises(ConfigError, match=said) as error:
        values(path)
    assert path in str(error.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("${A}", "x/y"), ("${A}b", "x%2Fyb"), ("a${A}", "ax%2Fy"), ("${A}${B}", "x%2Fyz"), ("$A", "$A"), ("${A", None), ("${C}", None)],
)
def test_a_reference_is_encoded_as_a_part_and_not_as_the_whole(text, meant):
    if meant is None:
        with pytest.raises(ConfigError, match="here: "):
            expanded(text, "here", {"A": "x/y", "B": "z"})
    else:
        assert expanded(text, "here", {"A": "x/y", "B": "z"}) == meant


def test_no_config_on_purpose():
    """/dev/null, which everybody may write to."""
    assert values("/dev/null")[1]["ttl"] == "built in"


def test_a_reference_of_another_lock_is_no_trouble(file):
    path = file('[locks.other]\nbackend = "${NOT_SET}"')
    assert values(path)[0]["backend"] == "flock:"


def test_it_must_be_there_if_it_was_named(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        values(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r": Is a directory$"):
        values(str(tmp_path))
    assert settle({}, "job", {"XDG_CONFIG_HOME": str(tmp_path)})[1]["ttl"] == "built in"


@pytest.mark.parametrize(
    ("mode", "text", "refused"),
    [
        (0o644, TEXT, ""),
        (0o644, '[backends]\nm = "redis://u:pw@h/0"', "may read the password"),
        (0o640, '[backends]\nm = "redis://u:pw@h/0"', ""),
        (0o604, '[locks.x]\nbackend = "postgresql://h/db?password=pw"', "may read the password"),
        (0o604, '[defaults]\nbackend = "postgresql://u@h/db?password_file=/x"', ""),
        (0o602, "", "others on this host may change it"),
    ],
)
def test_what_others_may_read_or_change(file, mode, text, refused):
    path = file(text, mode=mode)
    if refused:
        with pytest.raises(PermissionDenied, match=refused) as error:
            values(path, PING="x")
        assert "pw@" not in str(error.value)
    else:
        values(path, PING="x")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_one_that_cannot_be_read_is_not_passed_over(file, tmp_path):
    """Without it a local lock would be taken instead of the one that the other servers take."""
    path = file()
    tmp_path.chmod(0o755)
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    done = subprocess.run(
        [*as_nobody, CRONLOCK, "--config", path, "job", "true"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    if "can't open file" in done.stderr or done.returncode == 126:
        pytest.skip("nobody can't reach this checkout")
    assert done.returncode == 77, done
    assert "can't be read by uid 65534" in done.stderr


def test_the_statuses(file, tmp_path):
    def run(*argv):
        done = subprocess.run(
            [CRONLOCK, *argv], capture_output=True, text=True, env={"PATH": "/bin:/usr/bin", "HOME": str(tmp_path)}, check=False
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    assert run("--config", file(mode=0o602), "job", "true")[0] == 77
    assert run("--config", file("[defaults]\nx = 1"), "job", "true")[0] == 78
    assert run("--config", file(), "-b", "nope", "job", "true")[0] == 64
    locks = tmp_path / "locks"
    path = file(f'[locks.job]\nbackend = "flock://{locks}"\n')
    assert run("--config", path, "job", "true") == (0, "")
    assert (locks / "job.lock").exists()


def test_cronlockctl_reads_it_too(file, tmp_path):
    ctl = CRONLOCK + "ctl"
    locks = tmp_path / "locks"
    path = file(f'[locks.job]\nbackend = "flock://{locks}"\nttl = "5m"\n[defaults]\nbackend = "flock://{tmp_path}/others"\n')
    env = {"PATH": "/bin:/usr/bin", "HOME": str(tmp_path), "CRONLOCK_CONFIG": path}
    key = subprocess.run([ctl, "key", "job"], capture_output=True, text=True, env=env, check=True)
    assert f"{locks}/job.lock" in key.stdout
    check = subprocess.run([ctl, "check"], capture_output=True, text=True, env=env, check=False)
    folded = " ".join(check.stdout.split())
    assert f"backend flock://{tmp_path}/others, from {path} [defaults]" in folded
    assert f'of job: backend flock://{locks}, from {path} [locks."job"]; ttl 5m, from {path} [locks."job"]' in folded


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_its_key(file, option):
    """But `config` itself, and what the file says is what the command line would have said."""
    samples = {"duration": "5m", "wait": "5m", "period": "5m", "size": "64k", "status": "7", "flag": "yes", "text": "flock:", "words": "a"}
    text = option.choices[-1] if option.kind == "choice" else samples[option.kind]
    path = file(f'[defaults]\n{option.name} = "{text}"\n')
    if option.name == "config":
        with pytest.raises(ConfigError):
            values(path)
    else:
        assert values(path)[0][option.key] == settle({}, "", {option.variable: text, "XDG_CONFIG_HOME": "/nonexistent"})[0][option.key]


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://u:pw@h/0", True),
        ("redis://:pw@h", True),
        ("redis://u@h/0", False),
        ("redis://u:@h/0", False),
        ("redis://u:${PW}@h", False),
        ("postgresql://h/db?password=x", True),
        ("postgresql://h/db?password_file=/x", False),
        ("postgresql://h/db?a=b&password=x", True),
        ("postgresql://h/db?sslpassword=x", True),
        ("rediss://h/0?ssl_password=x", True),
        ("flock:///a:b@c", False),
    ],
)
def test_has_password(url, found):
    assert has_password(url) is found
