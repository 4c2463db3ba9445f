"""What changes with which value: checksums, secrets, what needs an API, what is immutable."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.ops.chart.rendering import (
    CHART,
    EARLIER,
    Object,
    RenderFailed,
    case,
    container,
    objects,
    of_kind,
    read,
    render,
    settings_files,
    stateful_set,
)

pytestmark = [pytest.mark.ops, pytest.mark.usefixtures("helm")]


def rendered(*flags: str, values: Path | None = None) -> list[Object]:
    return read(render(*flags, values=values))


def checksums(*flags: str) -> dict[str, str]:
    # A Secret of its own, or each render would have another.
    found = rendered("--set=secrets.existingSecret=s", *flags)
    return stateful_set(found)["spec"]["template"]["metadata"]["annotations"]


def test_the_checksum_changes_with_the_settings_and_with_nothing_else():
    before = checksums()

    assert checksums("--set=config.logLevel=debug") != before
    assert checksums("--set=extraConfig.limits.connections_max=5") != before
    assert checksums("--set=minReadySeconds=11", "--set=networkPolicy.enabled=false") == before


def test_a_new_node_does_not_restart_those_that_came_before_it():
    five = checksums("--set=replicas=5", "--set=podDisruptionBudget.maxUnavailable=1")

    assert five == checksums("--set=replicas=7")


def test_the_checksum_of_secrets_changes_with_them():
    one = stateful_set(rendered())["spec"]["template"]["metadata"]["annotations"]
    other = stateful_set(rendered())["spec"]["template"]["metadata"]["annotations"]

    assert one["checksum/config"] == other["checksum/config"]
    assert one["checksum/secret"] != other["checksum/secret"]  # two installs, two secrets


def test_secrets_are_made_unless_they_are_given():
    (made,) = of_kind(rendered(), "Secret")

    assert set(made["data"]) == {"cluster-secret", "admin-password"}
    assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert of_kind(objects("existing-secret"), "Secret") == []


def test_no_secret_is_in_the_settings_or_in_the_environment():
    found = rendered()
    (made,) = of_kind(found, "Secret")
    rest = yaml.safe_dump([each for each in found if each is not made])

    assert not any(value in rest for value in made["data"].values())


def test_what_an_operator_defines_is_made_only_where_it_is():
    values = case("monitoring").values
    without = read(render(values=values, apis=()))

    assert not [each for each in without if each["kind"] in {"PodMonitor", "PrometheusRule"}]
    with pytest.raises(RenderFailed, match="install cert-manager"):
        render(values=case("tls-certmanager").values, apis=())


def test_rules_and_dashboards_are_in_the_release_as_they_are_in_their_files():
    found = objects("monitoring")
    (rules,) = of_kind(found, "PrometheusRule")
    boards = next(
        each for each in of_kind(found, "ConfigMap") if "dashboards" in each["metadata"]["name"]
    )

    file = (CHART / "files/rules/quorate.yaml").read_text()
    assert rules["spec"] == yaml.safe_load(file)
    assert "{{ $labels" in yaml.safe_dump(rules["spec"])
    board = (CHART / "files/dashboards/quorate.json").read_text()
    assert boards["data"]["quorate.json"].strip() == board.strip()


def test_every_alert_links_to_its_runbook_where_it_is_served():
    (rules,) = of_kind(objects("openshift"), "PrometheusRule")
    alerts = [each for group in rules["spec"]["groups"] for each in group["rules"]]
    alerts = [each for each in alerts if "alert" in each]

    assert len(alerts) > 20
    assert {each["annotations"]["runbook_url"] for each in alerts} == {
        f"https://docs.example.org/quorate/metrics/#{each['alert'].lower()}" for each in alerts
    }


def test_a_service_monitor_reads_each_node_once():
    found = objects("openshift")
    (monitor,) = of_kind(found, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [e for e in of_kind(found, "Service") if wanted <= e["metadata"]["labels"].items()]

    assert of_kind(found, "PodMonitor") == []
    assert [each["spec"]["clusterIP"] for each in services] == ["None"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in {each["name"] for each in services[0]["spec"]["ports"]}


def test_uids_and_affinity_may_be_given_instead_of_the_charts():
    found = objects("openshift")
    spec = stateful_set(found)["spec"]["template"]["spec"]
    contexts = [spec["securityContext"], *[c["securityContext"] for c in spec["containers"]]]

    assert not any(each.keys() & {"runAsUser", "runAsGroup", "fsGroup"} for each in contexts)
    assert [*spec["affinity"]["podAntiAffinity"]] == [
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert [each["minDomains"] for each in spec["topologySpreadConstraints"]] == [3]


def test_an_ingress_leads_to_http_of_nodes_that_are_ready():
    found = objects("openshift")
    (ingress,) = of_kind(found, "Ingress")
    (rule,) = ingress["spec"]["rules"]
    target = rule["http"]["paths"][0]["backend"]["service"]
    (service,) = [e for e in of_kind(found, "Service") if e["metadata"]["name"] == target["name"]]

    assert rule["host"] == "quorate.apps.example.org"
    assert ingress["spec"]["tls"] == [
        {"hosts": ["quorate.apps.example.org"], "secretName": "quorate-web"}
    ]
    assert "publishNotReadyAddresses" not in service["spec"]
    assert target["port"]["name"] in {each["name"] for each in service["spec"]["ports"]}


def test_each_endpoint_of_metrics_is_a_job_of_its_own():
    monitors = of_kind(objects("monitoring"), "PodMonitor")
    endpoints = [each["spec"]["podMetricsEndpoints"] for each in monitors]

    assert [[each["path"] for each in few] for few in endpoints] == [
        ["/metrics"],
        ["/metrics/detailed"],
    ]
    jobs = [few[0]["relabelings"][0]["replacement"] for few in endpoints]
    assert jobs == ["mq-quorate", "mq-quorate-detailed"]


def test_only_nodes_reach_the_peer_port():
    for name in ("default", "networkpolicy"):
        (policy,) = of_kind(objects(name), "NetworkPolicy")
        rules = [
            rule
            for rule in policy["spec"]["ingress"]
            if "peer" in {port["port"] for port in rule["ports"]}
        ]
        labels = stateful_set(objects(name))["spec"]["selector"]["matchLabels"]
        assert [rule["from"] for rule in rules] == [[{"podSelector": {"matchLabels": labels}}]]


def test_clients_need_their_label_when_not_every_pod_is_one():
    (policy,) = of_kind(objects("networkpolicy"), "NetworkPolicy")
    clients = policy["spec"]["ingress"][1]["from"][0]

    assert clients == {
        "podSelector": {"matchLabels": {"uses-quorate": "true"}},
        "namespaceSelector": {"matchLabels": {"team": "shop"}},
    }


def test_nats_is_there_when_it_is_asked_for():
    def ports(found: list[Object]) -> dict[str, set[str]]:
        """By service."""
        return {
            each["metadata"]["name"].rpartition("quorate")[2]: {
                port["name"] for port in each["spec"]["ports"]
            }
            for each in of_kind(found, "Service")
        }

    nats = {"nats", "nats-tls", "nats-monitor"}
    assert not nats & set().union(*ports(objects("default")).values())

    flags = [f"--set=listeners.{name}=true" for name in ("nats", "natsTls", "natsMonitor")]
    found = rendered(*flags, values=case("tls-existing").values)
    of_clients, of_nodes = ports(found)[""], ports(found)["-headless"]
    assert nats & of_clients == {"nats", "nats-tls"}
    assert nats <= of_nodes
    (policy,) = of_kind(found, "NetworkPolicy")
    _, clients, prometheus = policy["spec"]["ingress"]
    reached = [{port["port"] for port in rule["ports"]} & nats for rule in (clients, prometheus)]
    assert reached == [{"nats", "nats-tls"}, {"nats-monitor"}]
    (container,) = stateful_set(found)["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["QUORATE_NATS_ADVERTISE"].endswith("svc.cluster.local:4222")


def test_clients_certificates_are_demanded_unless_they_are_optional():
    def verified(*flags: str) -> list[str]:
        found = rendered(*flags, values=case("tls-existing").values)
        texts = settings_files(found).values()
        return [tomllib.loads(text)["tls"].get("amqps_verify", "required") for text in texts]

    assert set(verified()) == {"required"}
    assert set(verified("--set=tls.amqpsVerify=optional")) == {"optional"}


def test_the_certificate_names_every_way_to_a_node():
    leaf = of_kind(objects("tls-certmanager"), "Certificate")[-1]

    assert {
        "*.mq-quorate-headless.shop.svc",
        "*.mq-quorate-headless.shop.svc.cluster.local",
        "mq-quorate.shop.svc",
        "mq-quorate.shop.svc.cluster.local",
        "localhost",
        "mq.example.org",
    } <= set(leaf["spec"]["dnsNames"])
    assert {"server auth", "client auth"} <= set(leaf["spec"]["usages"])


def test_nodes_that_came_later_join_and_the_first_ones_do_not():
    files = settings_files(objects("five-nodes"))

    assert {name for name, text in files.items() if "join = true" in text} == {
        "mq-quorate-3.toml",
        "mq-quorate-4.toml",
    }
    assert container(objects("five-nodes"))["args"][-1] == "/etc/quorate/$(QUORATE_NODE).toml"


def test_selectors_and_claims_are_those_of_every_earlier_version():
    """A StatefulSet whose selector, service or claims changed cannot be upgraded."""
    now = stateful_set(rendered())["spec"]
    earlier = sorted(EARLIER.glob("*.tgz"))

    assert earlier
    for chart in earlier:
        then = stateful_set(read(render(chart=chart)))["spec"]
        for field in ("selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy"):
            assert then[field] == now[field], f"{chart.name}: {field}"


def test_whole_numbers_stay_whole_and_shares_do_not():
    text = settings_files(objects("everything"))["quorate.toml"]

    assert "connections_max = 20000\n" in text
    assert "memory_high_watermark = 0.5" in text
    assert "retain_hours = 1.5" in text


def test_clients_from_outside_are_sent_to_names_that_they_know():
    found = objects("outside")
    services = {each["metadata"]["name"]: each for each in of_kind(found, "Service")}
    environment = {each["name"]: each.get("value") for each in container(found)["env"]}

    told = {name: value for name, value in environment.items() if name.endswith("_ADVERTISE")}
    assert told == {
        "QUORATE_HTTP_ADVERTISE": "$(QUORATE_NODE).mq.example.org:8080",
        "QUORATE_AMQP_ADVERTISE": "$(QUORATE_NODE).mq.example.org:5672",
        "QUORATE_HTTPS_ADVERTISE": "$(QUORATE_NODE).mq.example.org:8443",
    }
    for ordinal in range(3):
        service = services[f"mq-quorate-{ordinal}"]
        assert service["metadata"]["annotations"] == {
            "external-dns.alpha.kubernetes.io/hostname": f"mq-quorate-{ordinal}.mq.example.org"
        }
        spec = service["spec"]
        assert spec["type"] == "LoadBalancer"
        assert spec["selector"]["statefulset.kubernetes.io/pod-name"] == f"mq-quorate-{ordinal}"
        assert {each["name"] for each in spec["ports"]} == {"http", "amqp", "amqps", "https"}
    (certificate,) = of_kind(found, "Certificate")
    assert "*.mq.example.org" in certificate["spec"]["dnsNames"]
    # Nodes find each other by the names that they always had.
    assert "mq.example.org" not in settings_files(found)["quorate.toml"]


def node_settings(found: list[Object], ordinal: int) -> dict[str, Any]:
    """Of the file that the pod's arguments name."""
    (*_, file) = container(found)["args"]
    name = Path(file.replace("$(QUORATE_NODE)", f"mq-quorate-{ordinal}")).name
    return tomllib.loads(settings_files(found)[name])


def test_where_there_is_no_load_balancer_each_node_has_ports_of_its_own():
    found = objects("node-ports")
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(found, "Service")}
    environment = {each["name"] for each in container(found)["env"]}

    assert not [name for name in environment if name.endswith("_ADVERTISE")]
    for ordinal in range(5):
        spec = services[f"mq-quorate-{ordinal}"]
        assert spec["type"] == "NodePort"
        assert "externalTrafficPolicy" not in spec  # a client may come by any machine
        ports = {each["name"]: each["nodePort"] for each in spec["ports"]}
        assert ports == {
            "http": 31000 + ordinal,
            "amqp": 31010 + ordinal,
            "nats": 31020 + ordinal,
            "https": 31030 + ordinal,
            "amqps": 31040 + ordinal,
        }
        told = node_settings(found, ordinal)
        assert {key: value for key, value in told.items() if key.endswith("_advertise")} == {
            f"{name}_advertise": f"machines.example.org:{ports[name]}"
            for name in ("http", "https", "amqp", "nats")
        }
    (certificate,) = of_kind(found, "Certificate")
    assert "machines.example.org" in certificate["spec"]["dnsNames"]


def node_ports(*flags: str) -> list[Object]:
    return rendered("--set=nodeServices.enabled=true", "--set=nodeServices.type=NodePort", *flags)


def test_a_node_with_ports_of_its_own_may_have_a_name_of_its_own():
    found = node_ports("--set=nodeServices.domain=mq.example.org")

    told = [node_settings(found, ordinal)["http_advertise"] for ordinal in range(3)]
    assert told == [f"mq-quorate-{n}.mq.example.org:{30080 + n}" for n in range(3)]


def test_an_address_of_a_machine_is_in_the_certificate_as_one():
    found = rendered("--set=nodeServices.host=192.0.2.7", values=case("node-ports").values)
    (certificate,) = of_kind(found, "Certificate")

    assert certificate["spec"]["ipAddresses"] == ["127.0.0.1", "192.0.2.7"]
    assert "192.0.2.7" not in certificate["spec"]["dnsNames"]
    assert node_settings(found, 4)["http_advertise"] == "192.0.2.7:31004"


def test_other_ports_restart_nodes_and_more_nodes_do_not():
    def checksum(*flags: str) -> str:
        secret, host = "--set=secrets.existingSecret=s", "--set=nodeServices.host=192.0.2.7"
        template = stateful_set(node_ports(secret, host, *flags))["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/config"]

    assert checksum("--set=replicas=5") == checksum()
    assert checksum("--set=nodeServices.nodePorts.http=31000") != checksum()
    assert checksum("--set=nodeServices.nodePorts.natsTls=31000") == checksum()  # nobody listens


def test_definitions_are_imported_once_or_at_each_upgrade():
    (once,) = of_kind(objects("outside"), "Job")
    (again,) = of_kind(objects("existing-secret"), "Job")
    (of_map,) = of_kind(objects("backup"), "Job")

    hooks = [each["metadata"]["annotations"]["helm.sh/hook"] for each in (once, again)]
    assert hooks == ["post-install", "post-install,post-upgrade"]
    (given,) = [each for each in of_kind(objects("outside"), "Secret") if "stringData" in each]
    read = json.loads(given["stringData"]["definitions.json"])
    assert [each["name"] for each in read["queues"]] == ["orders"]

    def source(job: Object) -> Object:
        volumes = job["spec"]["template"]["spec"]["volumes"]
        return next(each for each in volumes if each["name"] == "definitions")

    assert source(once)["secret"]["secretName"] == given["metadata"]["name"]
    assert source(again)["secret"]["secretName"] == "shop-definitions"
    assert source(of_map)["configMap"]["name"] == "shop-definitions"


def test_backups_go_to_a_volume_and_on_to_a_store():
    (job,) = of_kind(objects("outside"), "CronJob")
    spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (made,), (sent,) = spec["initContainers"], spec["containers"]

    assert "backup /backups --keep 14" in made["args"][0]
    assert sent["command"] == ["rclone", "sync", "/backups", "store:quorate"]
    assert sent["envFrom"] == [{"secretRef": {"name": "rclone-environment"}}]
    (mount,) = [each for each in sent["volumeMounts"] if each["name"] == "backups"]
    assert mount["readOnly"] is True
    (claim,) = of_kind(objects("outside"), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"

    (plain,) = of_kind(objects("backup"), "CronJob")
    assert plain["spec"]["schedule"] == "@hourly"
    spec = plain["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"]] == ["backup"]
    assert of_kind(objects("backup"), "PersistentVolumeClaim") == []


def test_jobs_of_the_release_are_let_in_where_pods_need_a_label():
    flags = ["--set=networkPolicy.anyClient=false", "--set=nodeServices.enabled=false"]
    found = rendered(*flags, values=case("outside").values)
    (policy,) = of_kind(found, "NetworkPolicy")
    selectors = [each["podSelector"] for each in policy["spec"]["ingress"][1]["from"]]
    (own,) = [each for each in selectors if "matchExpressions" in each]

    jobs = {
        of_kind(found, kind)[0]["metadata"]["labels"]["app.kubernetes.io/component"]
        for kind in ("Job", "CronJob")
    }
    assert jobs <= set(own["matchExpressions"][0]["values"])


def test_during_a_rotation_nodes_are_told_where_the_former_secrets_are():
    quiet = settings_files(rendered())["quorate.toml"]
    assert "previous" not in quiet

    flags = ["--set-string=secrets.rotation=2026-11", "--set=secrets.existingSecret=s"]
    found = rendered(*flags)
    settings = tomllib.loads(settings_files(found)["quorate.toml"])
    volumes = stateful_set(found)["spec"]["template"]["spec"]["volumes"]
    sources = next(each for each in volumes if each["name"] == "settings")["projected"]["sources"]
    (former,) = [each["secret"] for each in sources if each.get("secret", {}).get("optional")]
    paths = {f"/etc/quorate/{each['path']}" for each in former["items"]}

    assert paths == {settings["previous_secret_file"], settings["previous_default_password_file"]}
    assert former["name"] == "s"
