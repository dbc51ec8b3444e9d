"""Shapes of real crontab lines with cronlock in them, run by a real /bin/sh -c as cron does.

`shape` is a line as people wrote it. Where flock stands in it, `cronlock` takes flock's place and nothing else changes;
elsewhere `ours` is the line with our command in front of the job. Paths are moved below $T, and what they name, or PATH,
is a stand-in that notes how it was called and says hello. Each line is run twice: while nobody has the lock, and while
somebody has, with flock(1) if it is a path.
"""
# ruff: noqa: E501 - a row is read against the line that it stands for

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from fixtures_store import until
from shell import Shell

STANDIN = '#!/bin/sh\necho "${0##*/}${*:+ $*}" >>"$T/ran"\necho hello\n'
FAILING = STANDIN + "exit 3\n"
PROGRAMS = {
    **dict.fromkeys(
        ("php", "start.sh", "snaptool", "probe", "python", "rake", "renew", "node", "s.sh", "rails", "bundle", "git", "pg_dump", "weather"),
        STANDIN,
    ),
    **dict.fromkeys(("backup", "curl", "mysqldump", "run-parts", "work", "x"), STANDIN),
    "chronic": '#!/bin/sh\n"$@" >"$T/chronic" 2>&1 || { s=$?; cat "$T/chronic"; exit $s; }\n',
    "cronic": '#!/bin/sh\n"$@" >"$T/cronic" 2>&1 || { s=$?; cat "$T/cronic"; exit $s; }\n',
    "su": '#!/bin/sh\nexec sh -c "$5"\n',  # su -s SHELL USER -c STRING
    "docker": STANDIN.replace("echo hello", 'case $2 in *t*) echo "not a TTY" >&2; exit 1;; esac; printf "a\\000b\\377\\n"'),
    "systemd-cat": '#!/bin/sh\nshift 2\nexec "$@"\n',
    "systemd-run": '#!/bin/sh\nshift 2\nexec "$@"\n',
    "sentry-cli": '#!/bin/sh\n[ "$4" = -- ] || exit 9\nshift 4\nexec "$@"\n',
    "logger": '#!/bin/sh\nexec cat >"$T/logger"\n',
}
USERS = ("root", "u", "www-data")


class Line(NamedTuple):
    shape: str
    lock: str = ""  # that somebody else holds in the second run; none: no second run
    ran: tuple[str, ...] = ()  # how the stand-ins were called
    jobs: tuple[str, ...] = ()  # stand-ins that the line names by path; a ! makes one fail with 3
    out: str = "hello\n"
    free: int = 0  # status while nobody has the lock
    busy: int = 75
    logs: dict[str, str] = {}  # noqa: RUF012 a table's default that nobody changes
    ours: str = ""
    anyway: tuple[str, ...] = ()  # those of `ran` that run after a skip as well
    err: str = ""  # what our line on stderr, or in the log, must contain


FLOCK = [
    Line("* * * * * flock -n /tmp/worker.lock php /srv/app/worker.php", "/tmp/worker.lock", ("php /srv/app/worker.php",)),
    Line(
        "* * * * * flock -n /tmp/agent.lock -c '/srv/agent/scheduler' >> /srv/agent/err.log 2>&1",
        "/tmp/agent.lock", ("scheduler",), ("/srv/agent/scheduler",), "", logs={"/srv/agent/err.log": "hello\n"},
    ),
    Line("* * * * * root flock -xn /tmp/hosts.lock -c 'bash /etc/app/helper.sh'", "/tmp/hosts.lock", ("helper.sh",), ("/etc/app/helper.sh",)),
    Line(
        "15 9 * * * root flock -xn /tmp/b.lock -c '/usr/bin/sh /root/bin/clusterbackup > /dev/null 2>&1'",
        "/tmp/b.lock", ("clusterbackup",), ("/root/bin/clusterbackup",), "",
    ),
    Line("* * * * * root flock -xn /tmp/agent.lock -c 'start.sh > /dev/null 2>&1 &'", "/tmp/agent.lock", ("start.sh",), out="", err="background"),
    Line(  # dash puts the whole prefix into the background; the lock covers the job all the same
        "* * * * * root flock -xn /var/lock/stop.lock -c /opt/x/stop.sh &>> /var/log/x.log",
        "/var/lock/stop.lock", ("stop.sh",), ("/opt/x/stop.sh",), busy=0, logs={"/var/log/x.log": ""},
    ),
    Line("* * * * * root flock -xn /dev/shm/fw.lock -c 'bash /etc/forward.sh'", "/dev/shm/fw.lock", ("forward.sh",), ("/etc/forward.sh",)),
    Line("*/10 * * * * /usr/bin/flock -n -o /tmp/w.lock /bin/bash /srv/x/watch.sh", "/tmp/w.lock", ("watch.sh",), ("/srv/x/watch.sh",)),
    Line(
        "17 3 * * * /usr/bin/flock -E 0 -n /run/lock/upload /usr/bin/timeout 600 /home/u/bin/upload.sh",
        "/run/lock/upload", ("upload.sh",), ("/home/u/bin/upload.sh",), busy=0,
    ),
    Line(  # busy is 75 here, so the caller's 1 is only a failed job any more
        "*/5 * * * * /usr/bin/flock -n /tmp/sync.lock /home/u/bin/sync.sh || [ $? -eq 1 ]",
        "/tmp/sync.lock", ("sync.sh",), ("/home/u/bin/sync.sh",), busy=1,
    ),
    Line(
        "*/5 * * * * /usr/bin/flock -E 1 -n /tmp/sync.lock /home/u/bin/sync.sh || [ $? -eq 1 ]",
        "/tmp/sync.lock", ("sync.sh",), ("/home/u/bin/sync.sh",), busy=0,
    ),
    Line(
        "*/5 * * * * /usr/bin/flock -w 0 /tmp/fast.lock /home/u/run.sh >> /tmp/fast.log 2>&1",
        "/tmp/fast.lock", ("run.sh",), ("/home/u/run.sh",), "", logs={"/tmp/fast.log": "hello\n"},
    ),
    Line(
        '*/3 * * * * /usr/bin/flock -w 0 -n /var/lock/m.lock /my/m.sh -s=/in/ -d="/media/to be sorted/" -p=/my/m.conf',
        "/var/lock/m.lock", ("m.sh -s=/in/ -d=/media/to be sorted/ -p=/my/m.conf",), ("/my/m.sh",),
    ),
    Line(
        "05 */3 * * * /usr/bin/flock -w 0 $HOME/src/x/.lock $HOME/src/x/build.sh 2>&1 >> /var/log/x.log",
        "$HOME/src/x/.lock", ("build.sh",), ("$HOME/src/x/build.sh",), "", logs={"/var/log/x.log": "hello\n"},
    ),
    Line(
        "2-59/5 * * * * /usr/bin/flock -w 0 /run/lock/t.lock /opt/x/sync.py 2>&1 | tee -a /var/log/sync.log",
        "/run/lock/t.lock", ("sync.py",), ("/opt/x/sync.py",), busy=0, logs={"/var/log/sync.log": "hello\n"},
    ),
    Line("* * * * * u /usr/bin/flock -w 0 /var/cron.lock -c 'cd /srv/x && ./scrape'", "/var/cron.lock", ("scrape",), ("/srv/x/scrape",)),
    Line("0 2 * * * flock /tmp/daily flock /tmp/event flock /tmp/bill /srv/x/all.sh", "/tmp/bill", ("all.sh",), ("/srv/x/all.sh",)),
    Line("0 1 * * * nice -n 19 ionice -c3 flock -n /tmp/night.lock /home/u/night.sh", "/tmp/night.lock", ("night.sh",), ("/home/u/night.sh",)),
    Line('*/15 * * * * root flock -n /var/run/snap/take.lock -c "TZ=UTC snaptool --take"', "/var/run/snap/take.lock", ("snaptool --take",)),
    Line("* 10 * * * /usr/bin/flock -n /tmp/s.lockfile sh /Users/me/s.sh", "/tmp/s.lockfile", ("s.sh",), ("/Users/me/s.sh",)),
    Line("*/1 * * * * root flock -xn /tmp/push.lock  -c '/root/bin/push /var/www/x/'", "/tmp/push.lock", ("push /var/www/x/",), ("/root/bin/push",)),
    Line("* * * * * flock -n /tmp/m-a.lock probe --name a https://a.example/health", "/tmp/m-a.lock", ("probe --name a https://a.example/health",)),
    Line("* * * * * flock -n /var/lock/agg.lock php agg.php", "/var/lock/agg.lock", ("php agg.php",)),
    Line("0 2 * * * flock -n /var/lock/agg.lock php agg.php --days 30", "/var/lock/agg.lock", ("php agg.php --days 30",)),
    Line("* * * * * root /usr/bin/flock -E 0 -n /tmp/fw.lock /opt/x/fw.sh >/dev/null 2>&1", "/tmp/fw.lock", ("fw.sh",), ("/opt/x/fw.sh",), "", busy=0),
    *(
        Line(
            f"{when} chronic flock -E 0 -n ~/.d.lock /usr/bin/searchd --config /x.conf --nodetach 2>&1 >> /tmp/d.log",
            "$HOME/.d.lock", ("searchd --config /x.conf --nodetach",), ("/usr/bin/searchd",), "", busy=0, logs={"/tmp/d.log": ""},
        )
        for when in ("@reboot", "* * * * *")
    ),
    Line(  # a relative path is a usage error: cron starts jobs elsewhere
        "nohup flock --nonblock --no-fork data/web.lock python -u -m app >> /srv/web.log 2>&1 < /dev/null &",
        out="", logs={"/srv/web.log": "relative"},
    ),
    Line(
        "nohup flock --nonblock --no-fork /srv/data/web.lock python -u -m app >> /srv/web.log 2>&1 < /dev/null &",
        "/srv/data/web.lock", ("python -u -m app",), out="", busy=0, logs={"/srv/web.log": "hello\n"},
    ),
    Line("* * * * * www-data flock -n /tmp/u.lock bash /srv/x/u.sh", "/tmp/u.lock", ("u.sh",), ("/srv/x/u.sh",)),
]  # fmt: skip

HABITS = [
    Line(  # the older tools of our name took it from the command line: here the first word is the NAME
        "*/10 * * * * cronlock /that/command --once", free=127, out="", jobs=("/that/command",), err="--once: command not found"
    ),
    Line('* * * * * CRONLOCK_KEY="ls" cronlock ls -a', free=127, out="", err="-a: command not found"),
    Line("0 8 * * * CRONLOCK_HOST=redis.example cronlock /var/www/mail.sh", free=64, out="", jobs=("/var/www/mail.sh",), err="no COMMAND"),
    Line(
        '*/10 * * * * /usr/bin/lockrun --lockfile=/tmp/j.lockrun -- sh -c "cd /data/app/current && rake RAILS_ENV=production t:x"',
        "/tmp/j.lockrun", ("rake RAILS_ENV=production t:x",), ("/data/app/current/Rakefile",),
        ours='cronlock /tmp/j.lockrun -- sh -c "cd /data/app/current && rake RAILS_ENV=production t:x"',
    ),
    Line(
        '*/20 * * * * runner --mail "a@example.org;b@example.org" --timeout=15 "python /x/scan.py 2>&1"',
        "scan", ("python /x/scan.py",), ours='cronlock --max-runtime 15 scan -c "python /x/scan.py 2>&1"',
    ),
    Line(
        "*/5 * * * * [ -f /tmp/job.lock ] || /usr/bin/python3 /home/u/job.py --time 900",
        "/tmp/job.lock", ("python3 /home/u/job.py --time 900",), ("/usr/bin/python3",),
        ours="cronlock /tmp/job.lock /usr/bin/python3 /home/u/job.py --time 900",
    ),
]  # fmt: skip

PRIORITIES = [
    Line(
        "0 4 * * * nice -n 19 ionice -c 3 timeout -k 60 3h /opt/x/run.sh deep", "run", ("run.sh deep",), ("/opt/x/run.sh",),
        ours="cronlock run -- nice -n 19 ionice -c 3 timeout -k 60 3h /opt/x/run.sh deep",
    ),
    Line(
        "0 4 * * * nice -n 19 ionice -c 3 timeout -k 60 3h /opt/x/run.sh deep", "run", ("run.sh deep",), ("/opt/x/run.sh",),
        ours="nice -n 19 ionice -c 3 timeout -k 60 3h cronlock run /opt/x/run.sh deep",
    ),
    Line(
        "* * * * * timeout 30m /usr/local/bin/php -d memory_limit=-1 /var/www/bin/app cron:run 2>&1",
        "app", ("php -d memory_limit=-1 /var/www/bin/app cron:run",), ("/usr/local/bin/php",),
        ours="cronlock app timeout 30m /usr/local/bin/php -d memory_limit=-1 /var/www/bin/app cron:run 2>&1",
    ),
    Line(
        "*/5 * * * * sleep $((RANDOM\\%15)) && ionice -c idle nice -19 /bin/bash /home/u/w.sh > /dev/null 2>&1", "w", ("w.sh",), ("/home/u/w.sh",), "",
        ours="sleep $((0\\%15)) && cronlock w ionice -c idle nice -19 /bin/bash /home/u/w.sh > /dev/null 2>&1",
    ),
    Line(
        "0 0,12 * * * python3 -c 'import random, time; time.sleep(random.random() * 3600)' && renew -q", "renew", ("renew -q",),
        ours="python3 -c 'import random, time; time.sleep(random.random() * .1)' && cronlock renew renew -q",
    ),
    Line(
        "@reboot sleep 60 && cd /srv/x && python3 /srv/x/main.py", "main", ("main.py",), ("/srv/x/main.py",),
        ours="sleep .1 && cd /srv/x && cronlock main sh /srv/x/main.py",
    ),
    Line(
        "@reboot sleep 60 && python3 /home/u/d.py >> /home/u/d.log 2>&1 &", "d", ("python /home/u/d.py",), out="", busy=0,
        ours="sleep .1 && cronlock d python /home/u/d.py >> /home/u/d.log 2>&1 &", logs={"/home/u/d.log": "hello\n"},
    ),
]  # fmt: skip

SHELLS = [
    Line(
        "10 3 * * * bash -lc 'cd /root/x && node up.mjs' >> /var/log/x.log 2>&1", "up", ("node up.mjs",), ("/root/x/up.mjs",), "",
        ours="cronlock up -- bash -lc 'cd /root/x && node up.mjs' >> /var/log/x.log 2>&1", logs={"/var/log/x.log": "hello\n"},
    ),
    Line(
        "*/10 * * * * bash -lc 'cd ~/x && s.sh >/tmp/s.log 2>&1 || true'", "s", (), out="",  # there is no ~/x, and `true` hides it
        ours="cronlock s -- bash -lc 'cd ~/x 2>/dev/null && s.sh >/tmp/s.log 2>&1 || true'",
    ),
    Line(
        """0 20 * * * bash -lc 'cd /srv/x; rails runner "A.new.run"'""", "a", ("rails runner A.new.run",), ("/srv/x/Gemfile",),
        ours="""cronlock a bash -lc 'cd /srv/x; rails runner "A.new.run"'""",
    ),
    Line(
        "0 2 * * * /bin/bash -l -c 'cd /srv/x/current && RAILS_ENV=staging bundle exec rake db:t --silent'",
        "db", ("bundle exec rake db:t --silent",), ("/srv/x/current/Gemfile",),
        ours="cronlock db /bin/bash -l -c 'cd /srv/x/current && RAILS_ENV=staging bundle exec rake db:t --silent'",
    ),
    Line(
        "* * * * * root su -s /bin/sh www-data -c 'cd /srv/x && TMPDIR=/y php s.php' >> /var/log/x.log 2>&1",
        "s", ("php s.php",), ("/srv/x/s.php",), "", logs={"/var/log/x.log": "hello\n"},
        ours="cronlock s su -s /bin/sh www-data -c 'cd /srv/x && TMPDIR=/y php s.php' >> /var/log/x.log 2>&1",
    ),
    Line(
        "*/5 * * * * root su -s /bin/sh app -c '/opt/app/check' 2>&1 | /etc/t/report 107 --stream both",
        "check", ("check", "report 107 --stream both"), ("/opt/app/check", "/etc/t/report"), busy=0, anyway=("report 107 --stream both",),
        ours="cronlock check su -s /bin/sh app -c '/opt/app/check' 2>&1 | /etc/t/report 107 --stream both",
    ),
    Line(  # the prefix first, or the backend's variables are gone
        "*/15 * * * * env -i HOME=/home/u PATH=/usr/bin:/bin /home/u/bin/s.sh >> /var/log/s.log 2>&1", "s", (), ("/home/u/bin/s.sh",), "",
        ours="cronlock s env -i HOME=/home/u PATH=/usr/bin:/bin /bin/sh -c 'echo [$CRONLOCK_BACKEND]' >> /var/log/s.log 2>&1",
        logs={"/var/log/s.log": "[]\n"},
    ),
    Line(  # the trap in it: a skip empties the file too
        "0 3 * * * docker exec -i db pg_dumpall -U u > /backups/pg-$(date +\\%Y\\%m\\%d).sql", "dump", ("docker exec -i db pg_dumpall -U u",), out="",
        ours="cronlock dump docker exec -i db pg_dumpall -U u > /backups/pg-$(date +\\%Y | tr -d 0-9).sql",
        logs={"/backups/pg-.sql": "a\0b\\xff\n"},
    ),
    Line(
        "* * * * * docker exec -it app php src/check.php", "check", ("docker exec -it app php src/check.php",), free=1, out="", err="not a TTY",
        ours="cronlock check docker exec -it app php src/check.php",
    ),
    Line(
        "*/5 * * * * /usr/bin/docker exec -t app node /x/send.js 0 welcome && curl -fsS -m 10 --retry 5 -o /dev/null https://ping.example/uuid",
        "send", ("docker exec -t app node /x/send.js 0 welcome",), free=1, out="", err="not a TTY",
        ours="cronlock send docker exec -t app node /x/send.js 0 welcome && curl -fsS -m 10 --retry 5 -o /dev/null https://ping.example/uuid",
    ),
    Line(
        "*/1 * * * * docker exec -it c1 python3 /r/l.py >> /r/out.log 2>> /r/err.log", "l", ("docker exec -i c1 python3 /r/l.py",), out="",
        ours="cronlock l docker exec -i c1 python3 /r/l.py >> /r/out.log 2>> /r/err.log", logs={"/r/out.log": "a\0b\\xff\n", "/r/err.log": ""},
    ),
    Line(
        "*/5 * * * * /bin/bash -c '/usr/bin/sudo -u www-data php /srv/run.php 2>&1 | /usr/bin/logger -p local5.info -t act'",
        "run", ("sudo -u www-data php /srv/run.php",), ("/usr/bin/sudo!",), "", logs={"/logger": "hello\n"},
        ours="cronlock run /bin/bash -c '/usr/bin/sudo -u www-data php /srv/run.php 2>&1 | logger -p local5.info -t act'",
    ),
    Line(
        "* * * * * cd /usr/share/x && /bin/bash -l -c '/usr/bin/x r -q -m POST /cluster/heartbeat ' >/dev/null 2>>/var/lib/x/cron.log",
        "x", ("x r -q -m POST /cluster/heartbeat",), ("/usr/share/x/here", "/usr/bin/x"), "", logs={"/var/lib/x/cron.log": ""},
        ours="cd /usr/share/x && cronlock x /bin/bash -l -c '/usr/bin/x r -q -m POST /cluster/heartbeat ' >/dev/null 2>>/var/lib/x/cron.log",
    ),
]  # fmt: skip

OUTPUT = [
    Line("SHELL=/bin/bash", "bash", out="bash\n", ours="SHELL=/bin/bash cronlock bash -c 'echo ${BASH_VERSION:+bash}'"),
    Line("0 1 * * * cronic backup", "backup", ("backup",), out="", ours="cronic cronlock backup backup"),
    Line("11 11 * * * cronic longwarn 60 /backup.sh", "backup", ("backup.sh",), ("/backup.sh",), "", ours="cronlock backup -- cronic /backup.sh"),
    Line(
        "*/10 * * * * systemd-cat -t noip /bin/bash /x/up.sh", "up", ("up.sh",), ("/x/up.sh",), ours="systemd-cat -t noip cronlock up /bin/bash /x/up.sh"
    ),
    Line(
        "0 20 * * * cd /srv/x && git pull 2>&1 | logger -t CRON", "pull", ("git pull",), ("/srv/x/here",), "", busy=0, logs={"/logger": ""},
        ours="cd /srv/x && cronlock pull git pull 2>&1 | logger -t CRON",
    ),
    Line(
        "@hourly /usr/sbin/snap --monitor | grep -vE '^OK'", "snap", ("snap --monitor",), ("/usr/sbin/snap",), "", free=1, busy=1,
        ours="cronlock snap /usr/sbin/snap --monitor | grep -vE '^hello'",
    ),
    Line(
        "*/15 * * * * . /env/bin/activate && weather 2>1 > /dev/null", "weather", ("sh", "weather"), ("/env/bin/activate",), anyway=("sh",), logs={"/1": ""},
        ours=". /env/bin/activate && cd /env && cd .. && cronlock weather weather 2>1 > /dev/null",
    ),
    Line(
        "0 4 * * * /srv/deploy.sh >> /var/log/deploy.log 2>&1", "deploy", ("deploy.sh",), ("/srv/deploy.sh!",), "", free=3,
        ours="cronlock deploy /srv/deploy.sh >> /var/log/deploy.log 2>&1", logs={"/var/log/deploy.log": "hello\n"},
    ),
    Line("0 1-22 * * * /usr/lib/sa/sa1 600 6 &", "sa1", ("sa1 600 6",), ("/usr/lib/sa/sa1",), busy=0, ours="cronlock sa1 /usr/lib/sa/sa1 600 6 &"),
]  # fmt: skip

PING = "curl -fsS -m 10 --retry 5 -o /dev/null https://ping.example/uuid"
HEARTBEATS = [
    Line(f"*/5 * * * * /opt/s.sh && {PING}", "s", ("s.sh", PING), ("/opt/s.sh",), "hello\nhello\n", ours=f"cronlock s /opt/s.sh && {PING}"),
    Line(f"*/5 * * * * /opt/s.sh && {PING}", "s", ("s.sh",), ("/opt/s.sh!",), free=3, ours=f"cronlock s /opt/s.sh && {PING}"),
    Line(  # a skip pings /fail as well: the built-in heartbeat does not
        "0 3 * * * /srv/backup.sh >> /var/log/b.log 2>&1 || curl -fsS -m 10 https://ping.example/uuid/fail",
        "backup", ("backup.sh", "curl -fsS -m 10 https://ping.example/uuid/fail"), ("/srv/backup.sh!",), logs={"/var/log/b.log": "hello\n"},
        busy=0, anyway=("curl -fsS -m 10 https://ping.example/uuid/fail",),
        ours="cronlock backup /srv/backup.sh >> /var/log/b.log 2>&1 || curl -fsS -m 10 https://ping.example/uuid/fail",
    ),
    Line(
        "*/5 * * * * root /opt/c.sh --offline >/var/log/c.log 2>&1 || curl -fsS -m 10 -H 'content-type: application/json'"
        ' -d "{\\"text\\": \\"$(hostname): failed\\"}" "$(cat /etc/x/webhook)" >/dev/null',
        "c", ("c.sh --offline", 'curl -fsS -m 10 -H content-type: application/json -d {"text": "h: failed"} none'), jobs=("/opt/c.sh!",), out="", busy=0,
        ours="cronlock -E 0 c /opt/c.sh --offline >/var/log/c.log 2>&1 || curl -fsS -m 10 -H 'content-type: application/json'"
        ' -d "{\\"text\\": \\"$(echo h): failed\\"}" "$(cat /etc/x/webhook 2>/dev/null || echo none)" >/dev/null',
        logs={"/var/log/c.log": "hello\n"},
    ),
    Line(
        "*/15 * * * * /usr/scripts/wrapper.sh 00000000-0000-0000-0000-000000000000 /bin/bash /x/sync.sh",
        "sync", ("wrapper.sh 00000000-0000-0000-0000-000000000000 /bin/bash /x/sync.sh",), ("/usr/scripts/wrapper.sh",),
        ours="cronlock sync /usr/scripts/wrapper.sh 00000000-0000-0000-0000-000000000000 /bin/bash /x/sync.sh",
    ),
    Line(  # the other prefix's -- is not ours
        "*/5 * * * * sentry-cli monitors run my-slug -- /path/script.sh", "my-slug", ("script.sh",), ("/path/script.sh",),
        ours="cronlock my-slug sentry-cli monitors run my-slug -- /path/script.sh",
    ),
]  # fmt: skip

CHAINS = [
    Line(
        "0 3 * * * pg_dump x | gzip > /backup/$(date +\\%F).sql.gz && find /backup -mtime +14 -delete", "dump", ("pg_dump x",), out="", busy=0,
        ours="cronlock dump pg_dump x | cat > /backup/$(date +\\%F | tr -d 0-9).sql.gz && find /backup -mtime +14 -delete",
        logs={"/backup/--.sql.gz": ""},
    ),
    Line('*/1 * * * * date "+%H:%M" >> ~/d.log', "d", out="", ours='cronlock d date "+:" >> ~/d.log', logs={"$HOME/d.log": ":\n"}),
    Line(
        '0 */4 * * * /home/u/b/script.sh -c "Cron backup - $(date +"%x - %X")"', "b", ("script.sh -c Cron backup - -",), ("/home/u/b/script.sh",),
        ours='cronlock b /home/u/b/script.sh -c "Cron backup - $(date +"-")"',
    ),
    Line(
        '55 7-13/2 * * * cronic /home/u/cap.sh $(date +"%s")-ext', "cap", ("cap.sh s-ext",), ("/home/u/cap.sh",), "",
        ours='cronic cronlock cap /home/u/cap.sh $(date +"s")-ext',
    ),
    Line(  # || and && bind alike: what follows runs after the failure too
        '@hourly mysqldump -u x x > /b/x-`date +\\%m\\%d-\\%H\\%M`.sql 2>> /b.log || echo "failed, see log" && gzip /b/*.sql',
        "dump", ("mysqldump -u x x", "work"), out="hello\n",
        ours='cronlock dump mysqldump -u x x > /b/x-`date +-`.sql 2>> /b.log || echo "failed, see log" && work',
        busy=0, anyway=("work",), logs={"/b/x--.sql": "", "/b.log": ""},
    ),
    Line(
        "* * * * * [ -f /etc/k ] && [ \\( ! -f /o/k \\) -o \\( /etc/k -nt /o/k \\) ] && /o/strip /etc/k /o/k || true",
        "k", ("strip /etc/k /o/k",), ("/o/strip", "/etc/k"), busy=0,
        ours="[ -f /etc/k ] && [ \\( ! -f /o/k \\) -o \\( /etc/k -nt /o/k \\) ] && cronlock k /o/strip /etc/k /o/k || true",
    ),
    Line(
        "* * * * * for i in 0 20 40; do (sleep ${i}; $HOME/x/20.py) & done;", "", ("20.py",) * 3, ("$HOME/x/20.py",), "hello\n" * 3,
        ours="for i in 0 .2 .4; do (sleep ${i}; cronlock -w 30 s20 $HOME/x/20.py) & done;",
    ),
    Line(
        "30 18 * * * /srv/manage.py send_report 1 # report_1", "report", ("manage.py send_report 1",), ("/srv/manage.py",),
        ours="cronlock report /srv/manage.py send_report 1 # report_1",
    ),
    Line(
        "17 * * * * root cd / && run-parts --report /etc/cron.hourly", "hourly", ("run-parts --report /etc/cron.hourly",),
        ours="cd / && cronlock hourly run-parts --report /etc/cron.hourly",
    ),
    Line(
        "25 6 * * * root test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )",
        "daily", ("run-parts --report /etc/cron.daily",),
        ours="test -x /usr/sbin/anacron || ( cd / && cronlock daily run-parts --report /etc/cron.daily )",
    ),
    Line(
        "25 1 * * * root test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }",
        "daily", ("run-parts --report /etc/cron.daily",),
        ours="test -x /usr/sbin/anacron || { cd / && cronlock daily run-parts --report /etc/cron.daily; }",
    ),
]  # fmt: skip

SCRIPTS = [  # no descriptors: a usage error that says what to do, and what follows does not run
    Line(
        "exec 200>/var/run/x.lock; flock -n 200 || exit 1; echo $$ 1>&200", free=1, out="", err="descriptors",
        ours="exec 9>/var/run/x.lock; cronlock -n 9 || exit 1; work",
    ),
    Line("( flock -x 10 || exit 1; echo $$ >&10; work ) 10>lock.lock", free=1, out="", err="descriptors", ours="( cronlock -x 9 || exit 1; work ) 9>lock"),
    Line("trap 'flock -u 99' EXIT", free=64, out="", err="nothing to unlock", ours="cronlock -u 99"),
    Line("flock -s 99", free=64, out="", err="no shared locks", ours="cronlock -s 99"),
    Line(
        '[ -z "$_run_" ] && { sleep "$(shuf -i 0-60 -n 1)"; export _run_=1; exec flock -E 0 -n "$0" timeout -v -k 60 3600 "$0" "$@"; }',
        "/srv/self", ("self a b",), busy=0, ours="/srv/self 'a b'",
    ),
    Line(
        "systemd-run --unit x /usr/bin/flock --nonblock --no-fork /run/lock/x /opt/x", "/run/lock/x", ("x",), ("/opt/x",),
        ours="systemd-run --unit x cronlock --nonblock --no-fork /run/lock/x /opt/x",
    ),
]  # fmt: skip

SELF = """#!/bin/sh
[ -z "$_run_" ] && { export _run_=1; exec cronlock -E 0 -n "$0" timeout -v -k 60 3600 "$0" "$@"; }
echo "self $*" >>$T/ran
echo hello
"""

QUIET = """
# nobody but the holder is left; a subshell shows the line that it will run
quiet() { ! pgrep -s 0 -af cronlock | grep -v -e '-w 10 '; }
: >$T/ran
"""

FREE = (
    QUIET
    + """
/bin/sh -c "$LINE" >$T/out 2>$T/err; echo status=$?
[ -z "$RUNS" ] || await grep -q "" $T/ran
await quiet
"""
)

BUSY = (
    QUIET
    + """
hold='touch $T/held; n=0; until [ -e $T/go ] || [ $n = 400 ]; do n=$((n + 1)); sleep .05; done'
case $LOCK in
/*) flock -w 10 "$LOCK" sh -c "$hold" & ;;
*) cronlock -w 10 "$LOCK" sh -c "$hold" & ;;
esac
await test -e $T/held
/bin/sh -c "$LINE" >$T/out 2>$T/err; echo status=$?
await quiet
touch $T/go; wait
"""
)


def in_our_words(line: Line, T: str) -> str:
    """The command part of the line, as the shell gets it from cron."""
    text = re.sub(r"^(@\w+|([\d*/,-]+ ){5})\s*", "", line.shape)
    for user in USERS:
        text = text.removeprefix(user + " ")
    text = line.ours or re.sub(r"(?<!\S)(/usr/bin/)?flock(?= )", "cronlock", text)
    return moved(text, T).replace("\\%", "%")


def moved(text: str, T: str) -> str:
    """Absolute paths go below T, but for the system's own."""
    return re.sub(r"""(?<![^\s'"=>(])/(?=\w)(?!dev/null|bin/|usr/bin/(?:sh|timeout|bin)\b|usr/bin:)""", f"{T}/", text)


def prepare(sh: Shell, line: Line, command: str) -> None:
    T, home = str(sh.T), str(sh.home / "home")
    for name, text in PROGRAMS.items():
        sh.program(name, text)
    (sh.home / "home" / ".bash_profile").write_text(f"PATH={sh.environment['PATH']}\n")  # /etc/profile has made it short
    for path in re.findall(rf"{re.escape(T)}/[\w./-]*", command + moved(" ".join(["", line.lock, *line.logs]), T)):
        (sh.T / path).parent.mkdir(parents=True, exist_ok=True)
    for job in line.jobs:
        sh.program(moved(job.rstrip("!"), T).replace("$HOME", home), FAILING if job.endswith("!") else STANDIN)
    if "/srv/self" in line.ours:
        sh.program(f"{T}/srv/self", SELF)


@pytest.mark.parametrize(
    "line",
    [*FLOCK, *HABITS, *PRIORITIES, *SHELLS, *OUTPUT, *HEARTBEATS, *CHAINS, *SCRIPTS],
    ids=lambda line: (line.ours or line.shape)[-70:],
)
def test_a_line_of_a_crontab(line):
    with Shell() as sh:
        T, home = str(sh.T), str(sh.home / "home")

        def said(name: str) -> str:
            return (sh.T / moved(name, T).replace("$HOME", home)).read_bytes().decode(errors="backslashreplace")

        command = in_our_words(line, T)
        prepare(sh, line, command)
        done = sh.run(FREE, LINE=command, RUNS="yes" if line.ran else "")
        assert done["status"] == str(line.free), (command, said("err"))
        assert sorted(said("ran").replace(T, "").splitlines()) == sorted(line.ran), (command, said("err"))
        assert said("out") == line.out
        assert line.err in said("err")
        assert bool(line.err) == bool(said("err")), (command, said("err"))
        for path, text in line.logs.items():
            until(lambda path=path, text=text: text in said(path))  # a command behind an & may still be at it

        if line.lock:
            done = sh.run(BUSY, LINE=command, LOCK=moved(line.lock, T).replace("$HOME", home))
            assert done["status"] == str(line.busy), (command, said("err"))
            assert sorted(said("ran").replace(T, "").splitlines()) == sorted(line.anyway), (command, said("err"))
            assert said("err") == "", "a skip must not make cron send mail"


def test_a_daemon_started_in_the_string_does_not_keep_the_lock():
    """-c 'job &': flock(1) hands it the lock, we do not, and say so. (Unless it is meant: a daemon's lock is -F.)"""
    with Shell() as sh:
        done = sh.run(
            """
            export daemon='n=0; until [ -e $T/go ] || [ $n = 400 ]; do n=$((n + 1)); sleep .05; done; touch $T/ended'
            SHELL=/bin/sh cronlock -xn $T/agent.lock -c 'sh -c "$daemon" > /dev/null 2>&1 &'; echo rc=$?
            timed next cronlock $T/agent.lock true
            [ ! -e $T/ended ]; echo alive=$?
            touch $T/go; await test -e $T/ended
            """
        )
    assert (done["rc"], done["next"], done["alive"]) == ("0", "0", "0")
    assert "background" in done.err


def test_a_lock_file_that_is_cleaned_away_under_its_holder():
    """`@reboot rm /tmp/fw.lock` beside a line that holds it: others would lock another file, so the job is stopped as lost."""
    with Shell() as sh:
        done = sh.run(
            """
            cronlock -E 0 -n $T/fw.lock sh -c 'touch $T/in; exec sleep 60' & w=$!
            await test -e $T/in
            rm $T/fw.lock; timed rc wait $w
            cronlock -E 0 -n $T/fw.lock true; echo next=$?
            """
        )
    assert (done["rc"], done["next"]) == ("76", "0")
    assert done.took("rc") < 5
    assert "lost" in done.err
    assert "fw.lock" in done.err
