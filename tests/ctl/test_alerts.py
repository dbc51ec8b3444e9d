"""The alert rules of docs/monitoring.md, read and run by Prometheus's own promtool."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cronlock.ctl.metrics import METRICS
from pages import ROOT

HOUR, MINUTE = 60, 1  # minutes
PAGE = (ROOT / "docs/monitoring.md").read_text()
STARTED, SUCCESS = "cronlock_last_start_timestamp_seconds", "cronlock_last_success_timestamp_seconds"
RUNS, HELD, USUAL = "cronlock_history_runs", "cronlock_held_seconds", "cronlock_usual_duration_seconds"
FILE = 'node_textfile_mtime_seconds{file="/var/lib/node_exporter/cronlock.prom",instance="web1:9100"}'


@pytest.fixture
def fires(tmp_path: Path):
    """fires({series: its values, one a minute, the last stays}, at=minutes) -> {(alert, name or instance)}: which alerts, by promtool"""
    promtool = shutil.which("promtool")
    if not promtool:
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)("needs promtool, of Debian's prometheus")
    (tmp_path / "rules.yml").write_text(re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1])
    subprocess.run([promtool, "check", "rules", "rules.yml"], cwd=tmp_path, check=True, capture_output=True)
    alerts = re.findall(r"alert: (\w+)", PAGE)
    assert len(alerts) == 3

    def ask(series, at):
        inputs = [{"series": name, "values": f"{values}x{2 * at}"} for name, values in series.items()]
        expected = [{"alertname": alert, "eval_time": f"{at}m", "exp_alerts": []} for alert in alerts]
        test = {"interval": "1m", "input_series": inputs, "alert_rule_test": expected}
        whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
        (tmp_path / "test.yml").write_text(json.dumps(whole))  # which is YAML
        done = subprocess.run([promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0 or "got:[" in re.sub(r"\s", "", said), said  # none was expected, so each that fires is told
        got = re.findall(r"Labels:(\{.*?\})", said)
        return {re.search(r'alertname="(\w+)".*(?:instance|name)="([^"]+)"', labels).groups() for labels in got}

    return ask


def test_the_rules_speak_of_metrics_that_there_are():
    named = set(re.findall(r"cronlock_\w+", re.search(r"```yaml\n(.*?)```", PAGE, re.S)[1]))
    assert named and named <= METRICS.keys()


def test_a_job_that_succeeds_is_quiet_and_one_that_stopped_is_not(fires):
    series = {
        f'{SUCCESS}{{name="well",host="web1"}}': "0+60",
        f'{SUCCESS}{{name="well",host="web2"}}': "0+0",  # another host does it now
        f'{SUCCESS}{{name="stopped",host="web1"}}': "0+0",
    }
    assert fires(series, 25 * HOUR) == set()
    assert fires(series, 27 * HOUR) == {("JobHasNotSucceeded", "stopped")}


def test_a_job_that_only_ever_failed_is_told(fires):
    """Whose history has no success, so the metric is not there at all."""
    series = {
        f'{RUNS}{{name="bad",host="web1",outcome="failed"}}': "100+0",
        f'{STARTED}{{name="bad",host="web1"}}': "0+60",
        f'{STARTED}{{name="new",host="web1"}}': "0+60",  # its first run is going
    }
    assert fires(series, 1 * HOUR) == {("JobHasNotSucceeded", "bad")}


def test_an_overdue_job(fires):
    series = {
        f'{HELD}{{name="slow",host="web1"}}': "0+60",
        f'{USUAL}{{name="slow",host=""}}': "600+0",
        f'{HELD}{{name="unknown",host="web1"}}': "0+60",
    }
    assert fires(series, 30 * MINUTE) == set()
    assert fires(series, 32 * MINUTE) == {("JobOverdue", "slow")}


def test_metrics_that_are_old(fires):
    assert fires({FILE: "0+60"}, 30 * MINUTE) == set()
    assert fires({FILE: "0+0"}, 11 * MINUTE) == {("CronlockMetricsAreOld", "web1:9100")}
