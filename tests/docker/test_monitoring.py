"""The compose profile `monitoring`: what its files name exists, and what the dashboard asks is answered."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import promql_parser
import pytest
import yaml
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from service.http.request_log import PROBES
from service.oip.grpc_calls import PATH
from service.oip.grpc_methods import METHODS
from service.settings import Settings
from tests.support.live_service import live_service, settings_for
from tests.support.paths import ROOT
from tests.support.small_pictures import saved
from tests.support.tiny_bundle import write_bundle

MONITORING = ROOT / "docker" / "monitoring"
# PromQL's words; what stands before a bracket is told apart by it.
WORDS = {"by", "on", "unless", "up", "max", "max_over_time", "sum", "rate", "increase"}
WORDS |= {"histogram_quantile", "label_values"}
ADDED_BY_PROMETHEUS = {"job", "instance", "service"}  # the last by the relabelling in prometheus.yml


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads((MONITORING / "grafana" / "dashboards" / "capsnet.json").read_text())


@pytest.fixture(scope="module")
def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    """Every query, with Grafana's variables filled in."""
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [variable["query"]["query"] for variable in dashboard["templating"]["list"]]
    for expression in panels + variables:
        yield expression.replace("$__rate_interval", "1m").replace("$service", ".*")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every metric that a service tells after some requests and with a refused bundle."""
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    broken = write_bundle(root / "tiny" / "2")
    (broken / "samples.npz").write_bytes(b"")
    with live_service(settings_for(root)) as client:
        pose = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}
        assert client.post("/reconstruct", json=pose).status_code == 200
        blank = saved(Image.new("L", (28, 28)), "PNG")
        assert client.post("/classify", files={"images": blank}).status_code == 200
        assert client.get("/models/nothing").status_code == 404
        families = text_string_to_metric_families(client.get("/metrics").text)
        labels: dict[str, set[str]] = {}
        for family in families:
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        return labels


def names_and_labels(expression: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a query names."""
    bare = re.sub(r'"[^"]*"', '""', expression)  # what stands in quotes is no name
    grouped = re.findall(r"\bby \(([^)]*)\)", bare)
    matched = re.findall(r"\{([^}]*)\}", bare)
    labels = {name for group in grouped for name in re.findall(r"\w+", group)}
    labels |= {name for matchers in matched for name in re.findall(r"(\w+)\s*[=!]", matchers)}
    rest = re.sub(r"\bby \([^)]*\)|\{[^}]*\}|\[[^\]]*\]", "", bare)
    names = set(re.findall(r"\b[a-z_]\w*", rest)) - WORDS - ADDED_BY_PROMETHEUS
    return names, labels


def test_every_metric_and_label_on_the_dashboard_is_told_by_the_service(dashboard, scraped):
    for expression in expressions(dashboard):
        names, labels = names_and_labels(expression)
        assert names, expression
        assert names <= scraped.keys(), expression
        for name in names:
            assert labels <= scraped[name] | ADDED_BY_PROMETHEUS, expression


def test_every_metric_and_label_of_an_alert_is_told_by_the_service(alerts, scraped):
    for alert in alerts:
        names, labels = names_and_labels(alert["expr"])
        assert names <= scraped.keys(), alert
        assert names or alert["alert"] in {"CapsnetDown", "CapsnetGone"}
        for name in names:
            assert labels <= scraped[name] | ADDED_BY_PROMETHEUS, alert
            used = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
            grouped = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", alert["expr"]))))
            assert used <= (grouped or scraped[name] | ADDED_BY_PROMETHEUS), alert


def test_every_alert_says_what_happens_how_bad_it_is_and_what_to_do(alerts):
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert alert["annotations"].keys() == {"summary", "description"}


def test_prometheus_reads_the_alerts_that_compose_gives_it(compose):
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    mounts = {inside: outside for outside, inside, _ in mounts_of(compose["services"]["prometheus"])}
    [rules] = config["rule_files"]
    assert (ROOT / mounts[f"/etc/prometheus/{rules}"]).read_text() == (MONITORING / "alerts.yml").read_text()


def mounts_of(service: dict[str, Any]) -> list[list[str]]:
    """Outside, inside and mode of every file that compose mounts."""
    return [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]


def test_a_legend_names_only_labels_that_its_query_keeps(dashboard):
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", target["expr"]))))
            assert used <= (kept or ADDED_BY_PROMETHEUS), target


def test_every_query_of_the_dashboard_is_promql_that_gives_series(dashboard):
    for expression in expressions(dashboard):
        asked = re.fullmatch(r"label_values\((.*), \w+\)", expression)  # Grafana's own, of its variables
        assert_gives_series(asked[1] if asked else expression)


def test_the_panels_of_requests_leave_out_all_probes(dashboard):
    probes = PROBES | {PATH + method.name for method in METHODS if method.is_probe}
    for panel in dashboard["panels"][:2]:
        for target in panel["targets"]:
            (left_out,) = re.findall(r'route!~"([^"]*)"', target["expr"])
            assert {route for route in probes if not re.fullmatch(left_out, route)} == set()
            assert not re.fullmatch(left_out, PATH + "ModelInfer")


def test_every_alert_is_promql_that_gives_series(alerts):
    for alert in alerts:
        assert_gives_series(alert["expr"])


def test_every_alert_has_the_fields_of_a_rule_and_waits_for_a_duration(alerts):
    for alert in alerts:
        assert alert.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        if "for" in alert:
            assert promql_parser.parse_duration(alert["for"])
            assert not alert["for"].isdigit()  # seconds for this parser, an error for Prometheus


def assert_gives_series(expression: str) -> None:
    """Prometheus can compute it, and it is no range, number or text."""
    found = promql_parser.parse(expression)  # raises ValueError
    no_series = (promql_parser.MatrixSelector, promql_parser.NumberLiteral, promql_parser.StringLiteral)
    assert not isinstance(found, no_series), expression


def test_every_metric_of_ours_is_on_the_dashboard(dashboard, scraped):
    shown = {name for expression in expressions(dashboard) for name in names_and_labels(expression)[0]}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in scraped if name.startswith("capsnet_")}
    assert families <= {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}


def test_panels_have_their_own_places_and_the_provisioned_source(dashboard):
    source = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ][0]
    taken = np.zeros((100, 24), int)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        taken[place["y"] : place["y"] + place["h"], place["x"] : place["x"] + place["w"]] += 1
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"] == {"type": "prometheus", "uid": source["uid"]}
    assert taken.max() == 1
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_grafana_looks_for_the_dashboard_where_compose_puts_it(compose, dashboard):
    grafana = compose["services"]["grafana"]
    mounts = {inside: ROOT / outside for outside, inside, _ in (v.split(":") for v in grafana["volumes"])}
    provider = yaml.safe_load((MONITORING / "grafana/provisioning/dashboards/capsnet.yml").read_text())
    folder = mounts[provider["providers"][0]["options"]["path"]]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert json.loads((folder / home.name).read_text())["uid"] == dashboard["uid"]
    assert mounts[str(home.parent)] == folder


def test_prometheus_asks_the_services_of_the_compose_file_on_their_port(compose):
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    served = {
        name for name, one in compose["services"].items() if "CAPSNET_MODELS" in one.get("environment", {})
    }
    assert set(found["names"]) == served
    for name in served:
        assert compose["services"][name]["environment"]["CAPSNET_PORT"] == found["port"]
    assert job.get("metrics_path", "/metrics") == "/metrics"
    assert {rule["target_label"] for rule in job["relabel_configs"]} <= ADDED_BY_PROMETHEUS


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_monitoring_is_opt_in_pinned_contained_and_for_this_machine_alone(compose, name):
    service = compose["services"][name]
    assert service["profiles"] == ["monitoring"]
    assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "user" not in service  # both images run as a user of their own; nothing here makes it root
    (port,) = service["ports"]
    assert ":-127.0.0.1:" in port


def test_nobody_can_log_in_to_grafana(compose):
    environment = compose["services"]["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def test_every_file_that_compose_mounts_is_there(compose):
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            outside = volume.split(":")[0]
            assert not outside.startswith("./") or (ROOT / outside).exists(), volume


def test_the_health_check_of_the_image_needs_no_key(tmp_path):
    dockerfile = (ROOT / "docker" / "service.Dockerfile").read_text()
    (path,) = re.findall(r'CAPSNET_PORT\\"\]\}(/\w+)', dockerfile)
    write_bundle(tmp_path / "tiny" / "1")
    settings: Settings = settings_for(tmp_path, api_keys="a-key")
    with live_service(settings) as client:
        assert client.get(path).status_code == 200
        assert client.get("/models").status_code == 401
