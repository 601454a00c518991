"""The alerts of deploy/: Prometheus' own checker accepts them, and each fires with the series that it is for, and not before."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.go_programs import PROMETHEUS

ROOT = Path(__file__).parents[2]
ALERTS, CASES = ROOT / "deploy/prometheus-alerts.yml", Path(__file__).parent / "alerts.test.yml"

NAMES = [rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]]


def promtool(program: Path, *arguments: str | Path) -> tuple[int, str]:
    """The exit code and the output."""
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_prometheus_accepts_its_configuration_and_the_alerts(promtool_program: Path, tmp_path: Path) -> None:
    """Also by its lints. The configuration names the path of the alerts in the container."""
    configured = (ROOT / "deploy/prometheus.yml").read_text()
    assert "[/etc/prometheus/prometheus-alerts.yml]" in configured
    (tmp_path / "prometheus.yml").write_text(configured.replace("/etc/prometheus/", ""))
    shutil.copy(ALERTS, tmp_path)
    code, said = promtool(promtool_program, "check", "config", "--lint=all", tmp_path / "prometheus.yml")
    assert code == 0, said
    assert f"{len(NAMES)} rules found" in said


def test_prometheus_refuses_an_alert_with_a_wrong_query(promtool_program: Path, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    wrong = ALERTS.read_text().replace("absent(", "absent((")
    assert wrong != ALERTS.read_text()
    (tmp_path / "alerts.yml").write_text(wrong)
    code, said = promtool(promtool_program, "check", "rules", tmp_path / "alerts.yml")
    assert code == 1
    assert "MulliganNoMetrics" in said


def test_each_alert_fires_with_the_series_that_it_is_for(promtool_program: Path) -> None:
    """With the texts that a person on call reads. The cases are in alerts.test.yml."""
    code, said = promtool(promtool_program, "test", "rules", CASES)
    assert code == 0, said


@pytest.mark.parametrize("alert", NAMES)
def test_each_alert_has_a_case_that_fires_and_a_case_that_does_not(alert: str) -> None:
    checks = [check for case in yaml.safe_load(CASES.read_text())["tests"] for check in case["alert_rule_test"]]
    fires = {bool(check["exp_alerts"]) for check in checks if check["alertname"] == alert}
    assert fires == {True, False}


def test_the_checker_is_of_the_version_that_is_deployed() -> None:
    """Prometheus 3.9.1 is the Go module v0.309.1."""
    [image] = [line for line in (ROOT / "deploy/compose.yaml").read_text().splitlines() if "prom/prometheus:" in line]
    major, minor, patch = image.partition("prometheus:v")[2].partition("@")[0].split(".")
    assert f"v0.{major}{int(minor):02}.{patch}" == PROMETHEUS
