"""check reads crontabs: a line that would not do what it says is found before cron does."""

from __future__ import annotations

import json
import pwd
import shutil

import pytest

from cronlock.ctl import crontab
from fixtures_nfs import unusable
from pages import ROOT
from shell import Shell, need_root

ENVIRON = {"SHELL": "/bin/sh", "HOME": "/nowhere"}


def said(command, **variables):
    """What is wrong with a command: its level and text."""
    found = crontab.commands(command)
    return [(one.level, one.text) for argv, own, cut in found for one in crontab.traps(argv, ENVIRON | variables | own, cut)]


@pytest.mark.parametrize(
    "command",
    [
        "cronlock backup /opt/backup",
        "cd /srv && /usr/local/bin/cronlock -t 2m --once-per 1h job -c 'a && b' >>log 2>&1",
        r"cronlock job sh -c 'dump >/backup/$(date +\%F).sql'",
        "cronlock -b redis://host/0 job true; cronlock other true # don't",
        "cronlock mail sendmail root%Subject: x%%hello",
        'cronlock -b "$STORE" -t $TTL "$NAME" true',
        "CRONLOCK_TTL=$TTL cronlock job true; CRONLOCK_VERBOSE=1 true; cronlock -q job true",
        "cronlocks --no-such",
        "true # cronlock --no-such",
        "ls /tmp/cronlock",
    ],
)
def test_what_is_well_is_not_spoken_of(command, tmp_path):
    (tmp_path / "cronlock").mkdir()
    assert said(command.replace("/tmp", str(tmp_path))) == []


@pytest.mark.parametrize(
    ("command", "level", "text"),
    [
        ("cronlock job sh -c 'dump >/backup/$(date +%F).sql'", "trouble", "cron ends the command at the first %"),
        ("cronlock job dump --to=$(date +%F)", "trouble", "cron ends the command at the first %"),
        ("cronlock --once job true", "trouble", "no option --once"),
        ("cd / && cronlock --once-per 7m job true", "trouble", "7m"),
        ("cronlock job", "trouble", "no COMMAND"),
        ("cronlock -s job true", "trouble", "no shared locks"),
        ("cronlock -b resid://h job true", "trouble", "did you mean redis"),
        ("cronlock --heartbeat hc-ping.com/x job true", "trouble", "--heartbeat"),
        ("cronlock -b redis://u:secret@h job true", "warning", "every user's ps"),
        ("cronlock job -c 'worker &'", "warning", "background"),
        ("true; cronlock -t 20s job true", "warning", "ttl 20s"),
        ("CRONLOCK_TTL=20s cronlock job true", "warning", "ttl 20s"),
        ("cronlock -v -q job true", "trouble", "contradict"),
    ],
)
def test_a_trap_is_seen(command, level, text):
    ((found, words),) = said(command)
    assert found == level and text in words and "secret" not in words


def test_lines_as_cron_reads_them():
    text = """
# 1 2 3 4 5 cronlock comment true
MAILTO=root
CRONLOCK_TTL = "20s"
"CRONLOCK_QUIET"= 1
*/5 * * * * cronlock a true
@daily  /usr/bin/cronlock b true
17 * * * * run-parts /etc/cron.hourly
"""
    me = pwd.getpwuid(0).pw_name
    lines = list(crontab.entries(text, "place", me))
    assert [(where, command) for where, _, command in lines] == [("place:6", "cronlock a true"), ("place:7", "/usr/bin/cronlock b true")]
    set_there = {"MAILTO": "root", "CRONLOCK_TTL": "20s", "CRONLOCK_QUIET": "1"}
    assert lines[0][1] == {"SHELL": "/bin/sh", "LOGNAME": me, "HOME": "/root"} | set_there
    assert said("cronlock a true", **lines[0][1])[0][1].startswith("ttl 20s")
    ((where, environ, command),) = crontab.entries("1 2 * * * nobody  cronlock c true\n", "/etc/cron.d/x")
    assert (where, environ["LOGNAME"], command) == ("/etc/cron.d/x:1", "nobody", "cronlock c true")


def test_files_that_cron_reads_otherwise_than_an_editor():
    """As Debian's cron 3.0pl1 did with them: CR LF, no newline at the end, lines that are none."""
    line = "* * * * * root cronlock -q a true"
    texts = {"crlf": f"MAILTO=root\r\n{line}\r\n", "open": line, "well": f"{line}\n", "torn": f"/usr/bin/cronlock\n@cronlock\n{line}\n"}
    texts |= {"user": "HOME=/srv\n* * * * * /bin/cronlock a true\n@daily nobody-here cronlock a true\n* * * * * nobody-here true\n"}
    found = crontab.findings([(place, text, "") for place, text in texts.items()])
    assert [(one.level, one.text) for one in found] == [
        ("trouble", "crlf:2: the line ends with CR LF, and cron makes the CR part of the command"),
        ("trouble", "open: no newline at its end: Debian's cron ignores the whole file"),
        ("trouble", "user:2: there is no user '/bin/cronlock', so Debian's cron ignores the whole file"),
        ("trouble", "user:3: there is no user 'nobody-here', so Debian's cron ignores the whole file"),
    ]


def test_the_lines_that_are_shown_have_no_traps():
    example = (ROOT / "examples/crontab.example").read_text()
    found = [(where, said(command, **environ)) for where, environ, command in crontab.entries(example, "example", "root")]
    assert len(found) > 3 and {where: traps for where, traps in found if traps} == {}


def test_check_reads_the_crontabs_of_this_machine():
    """Real crontab(1), and what Debian's packages put beside it; another user's lines are root's to see."""
    need_root()
    if not shutil.which("crontab"):
        unusable("needs Debian's package cron")
    with Shell() as sh:
        (sh.T / "mine").write_text("CRONLOCK_TTL=20s\n* * * * * cronlock -q mine true\n")
        (sh.T / "theirs").write_text("* * * * * root cronlock -q a true\n* * * * * nobody cronlock --bad b true\n")
        script = """
        for place in /var/spool/cron/crontabs /etc/cron.d; do mount -t tmpfs tmpfs $place; done
        crontab mine; cp theirs /etc/cron.d/app; cp theirs /etc/cron.d/app.dpkg-old
        printf '* * * * * root cronlock -q a true\\r\\n' >/etc/cron.d/windows
        cronlockctl check --json; echo
        """
        done = sh.run(f"{script} rm /etc/cron.d/app /etc/cron.d/windows; crontab -r; cronlockctl check | grep crontab >&2")
    found = [one for one in json.loads(done.out)["findings"] if one["subject"] == "crontab"]
    assert [(one["level"], one["text"].partition(": ")[0]) for one in found] == [
        ("warning", "crontab -l:2"),
        ("trouble", "/etc/cron.d/app:2"),
        ("trouble", "/etc/cron.d/windows:1"),
    ]
    assert done.err.strip().endswith("no line here starts cronlock")


def test_what_is_set_and_where(ctl, tmp_path):
    """The config file, the environment, and one lock's own."""
    (tmp_path / ".config/cronlock").mkdir(parents=True)
    file = tmp_path / ".config/cronlock/config.toml"
    file.write_text(
        f'[backends]\nmain = "flock://{tmp_path}/locks"\n[defaults]\nbackend = "main"\nttl = "5m"\nkill-after = "30s"\n'
        '[locks."nightly"]\nttl = "2h"\nheartbeat = ["https://hc-ping.com/s3cr3t"]\n'
    )
    answer = ctl("check", "--json", env={"CRONLOCK_KILL_AFTER": "20s", "CRONLOCK_PREFER": "web1,web2"})
    found = json.loads(answer.out)["findings"]
    told = [one["text"] for one in found if one["subject"] == "setting"]
    assert told == [
        f"backend flock://{tmp_path}/locks, from {file} [backends] main, named by {file} [defaults]",
        f"ttl 5m, from {file} [defaults]",
        "prefer web1 web2, from the environment",
        "kill-after 20s, from the environment",
        f'of nightly: ttl 2h, from {file} [locks."nightly"]; heartbeat hc-ping.com, from {file} [locks."nightly"]',
    ]
    odd = [one["subject"] for one in found if one["level"] != "ok"]
    assert odd in ([], ["kept"]) and answer.status == len(odd), answer  # a tmpfs is said to forget
    file.write_text('[locks]\nshort = {ttl = 20}\nwrong = {ttl = "soon"}\n')
    answer = ctl("check", "--json", backend=f"flock://{tmp_path}/locks")
    texts = {text.partition(": ")[0]: (one["level"], text) for one in json.loads(answer.out)["findings"] if (text := one["text"])}
    assert answer.status == 2 and texts["of short"][0] == "warning" and "ttl 20s" in texts["of short"][1]
    assert texts["of wrong"][0] == "trouble" and "'soon' is no duration" in texts["of wrong"][1]
