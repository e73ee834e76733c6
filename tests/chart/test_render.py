"""What the chart renders: the default as a snapshot, the rest by what a case is about."""

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.build.charts import CHART, Helm, Json, named
from weightsync import names

SNAPSHOT = Path(__file__).with_name("default.yaml")
CRDS = Path(__file__).resolve().parents[2] / "crds"
OPERATOR = "weightsync-operator"


def test_lint(chart: Helm) -> None:
    """Helm itself finds nothing wrong."""
    done = chart.run("lint", str(CHART), "--strict")
    assert done.returncode == 0, done.stdout


def test_the_default_is_what_it_was(chart: Helm) -> None:
    """The snapshot shows in review what a change of the chart changes. UPDATE_SNAPSHOTS=1 writes it anew."""
    text = chart.text("--set=crds.install=false", "--set=agent.namespaces={rl}")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8")


def test_the_crds_are_those_of_the_repository(chart: Helm) -> None:
    """Equal but for the annotation that keeps them; none where they are not wanted."""
    rendered = [made for made in chart.objects() if made["kind"] == "CustomResourceDefinition"]
    assert len(rendered) == 2
    for made in rendered:
        assert made["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert made == yaml.safe_load((CRDS / f"{made['metadata']['name']}.yaml").read_text(encoding="utf-8"))
    assert "CustomResourceDefinition" not in chart.text("--set=crds.install=false")


def rules(objects: list[Json]) -> list[Json]:
    return [rule for made in objects for rule in made.get("rules", [])]


@pytest.mark.parametrize("flags", [(), ("--set=operator.watchNamespaces={a,b}",)], ids=["cluster", "namespaces"])
def test_no_wildcards_and_no_secrets(chart: Helm, flags: tuple[str, ...]) -> None:
    """Every right is named; nothing may be done with secrets, or with pods' specs."""
    for rule in rules(chart.objects(*flags)):
        for part in ("apiGroups", "resources", "verbs"):
            assert not any("*" in word for word in rule[part])
        assert "secrets" not in rule["resources"]
        if "pods" in rule["resources"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
        if "pods/status" in rule["resources"]:
            assert rule["verbs"] == ["patch"]


def test_namespaces_instead_of_the_cluster(chart: Helm) -> None:
    """With watchNamespaces the operator holds a role in each and no cluster role at all."""
    objects = chart.objects("--set=operator.watchNamespaces={a,b}", "--set=rbac.aggregate=false")
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "ClusterRole"] == ["weightsync-agent"]
    assert not [o for o in objects if o["kind"] == "ClusterRoleBinding"]
    for namespace in ("a", "b"):
        binding = named(objects, "RoleBinding", OPERATOR, namespace)
        assert binding["subjects"][0]["namespace"] == "weightsync-system"
    environment = named(objects, "Deployment", OPERATOR)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "WEIGHTSYNC_OPERATOR_NAMESPACES", "value": "a,b"} in environment


def test_agents_get_their_rights_by_namespace(chart: Helm) -> None:
    """An account and a binding in each namespace; or the binding alone for accounts that are there."""
    objects = chart.objects("--set=agent.namespaces={rl,eval}")
    for namespace in ("rl", "eval"):
        account = named(objects, "ServiceAccount", "weightsync-agent", namespace)
        assert account["automountServiceAccountToken"] is False
        binding = named(objects, "RoleBinding", "weightsync-agent", namespace)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "weightsync-agent", "namespace": namespace}]
    flags = (
        "--set=agent.namespaces={rl}",
        "--set=agent.serviceAccount.create=false",
        "--set=agent.serviceAccount.name=x",
    )
    objects = chart.objects(*flags)
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"] == [OPERATOR]
    assert named(objects, "RoleBinding", "weightsync-agent", "rl")["subjects"][0]["name"] == "x"


def test_the_policy_is_for_the_agents_accounts(chart: Helm) -> None:
    """Of each namespace, by the name that the values give; fails closed; without namespaces there is no policy."""
    flags = ("--set=agent.namespaces={rl,eval}", "--set=agent.serviceAccount.name=x")
    objects = chart.objects(*flags)
    policy = named(objects, "ValidatingAdmissionPolicy", "weightsync-agent")["spec"]
    assert policy["failurePolicy"] == "Fail"
    (condition,) = policy["matchConditions"]
    accounts = '["system:serviceaccount:rl:x", "system:serviceaccount:eval:x"]'
    assert condition["expression"] == f"request.userInfo.username in {accounts}"
    assert all(rule["message"] and rule["reason"] == "Forbidden" for rule in policy["validations"])
    binding = named(objects, "ValidatingAdmissionPolicyBinding", "weightsync-agent")["spec"]
    assert binding == {"policyName": "weightsync-agent", "validationActions": ["Deny", "Audit"]}
    assert "ValidatingAdmissionPolicy" not in chart.text()


def test_the_operator_is_confined(chart: Helm) -> None:
    """Not root, nothing writable, no capability, no service links, and one Lease by name."""
    objects = chart.objects()
    pod = named(objects, "Deployment", OPERATOR)["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["enableServiceLinks"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    lease = named(objects, "Role", "weightsync-operator-lease")["rules"]
    assert lease[1]["resourceNames"] == [OPERATOR]


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        pytest.param("--set=operator.replica=2", "replica", id="a misspelt key"),
        pytest.param("--set=opertor.replicas=2", "opertor", id="a misspelt part"),
        pytest.param("--set=operator.replicas=two", "replicas", id="a word for a number"),
        pytest.param("--set=image.pullPolicy=Sometimes", "pullPolicy", id="an unknown policy"),
        pytest.param("--set=agent.namespaces={No_Name}", "namespaces", id="no namespace's name"),
    ],
)
def test_wrong_values_are_refused(chart: Helm, flag: str, said: str) -> None:
    """The schema is closed: a typo is an error, not a default."""
    done = chart.run("template", "weightsync", str(CHART), flag)
    assert done.returncode != 0
    assert said in done.stderr


def test_an_operator_of_two_replicas_may_lose_one(chart: Helm) -> None:
    """They prefer different nodes, and a drain ends one at a time; a single one is not held back."""
    objects = chart.objects()
    budget = named(objects, "PodDisruptionBudget", OPERATOR)["spec"]
    deployment = named(objects, "Deployment", OPERATOR)["spec"]
    (term,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert deployment["replicas"] == 2
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert (
        budget["selector"] == deployment["selector"] == {"matchLabels": deployment["template"]["metadata"]["labels"]}
    )
    assert term["podAffinityTerm"]["labelSelector"] == deployment["selector"]
    assert "PodDisruptionBudget" not in chart.text("--set=operator.replicas=1")


def ports(rule: Json) -> set[int]:
    """Every TCP port that a rule admits."""
    return {
        number
        for port in rule["ports"]
        if port["protocol"] == "TCP"
        for number in range(port["port"], port.get("endPort", port["port"]) + 1)
    }


def test_the_agents_ports_are_for_pods_with_an_agent(chart: Helm) -> None:
    """API and data ports for them, every other port for everybody, /metrics for who scrapes: no port is left out."""
    scraper = {"namespaceSelector": {"matchLabels": {"team": "sight"}}}
    flags = ("--set=agent.namespaces={rl}", f"--set-json=networkPolicy.scrapers={json.dumps([scraper])}")
    policy = named(chart.objects(*flags), "NetworkPolicy", "weightsync-agent", "rl")["spec"]
    members, everybody, scrapers = policy["ingress"]
    closed = {names.AGENT_PORT, *range(15000, 17001)}
    assert policy["podSelector"]["matchExpressions"] == [{"key": "weightsync.io/inject", "operator": "Exists"}]
    assert members["from"] == [{"podSelector": policy["podSelector"]}]
    assert ports(members) == closed
    assert "from" not in everybody
    assert ports(everybody) == set(range(1, 65536)) - closed
    assert (scrapers["from"], ports(scrapers)) == ([scraper], {names.AGENT_PORT})


def test_monitoring_needs_its_kinds(chart: Helm) -> None:
    """Switched on, but left out where the cluster does not know them: an install must not fail for it."""
    flags = ("--set=monitoring.podMonitor.enabled=true", "--set=monitoring.alerts.enabled=true")
    assert "monitoring.coreos.com" not in chart.text(*flags)


def test_the_agents_account_can_pull_their_image(chart: Helm) -> None:
    """For pods whose templates carry the agent."""
    flags = ("--set=agent.namespaces={rl}", '--set-json=imagePullSecrets=[{"name":"pull"}]')
    assert named(chart.objects(*flags), "ServiceAccount", "weightsync-agent", "rl")["imagePullSecrets"] == [
        {"name": "pull"}
    ]


@pytest.mark.parametrize(
    ("watched", "said"),
    [("", False), ("rl", True), ("rl,eval", False)],
    ids=["all namespaces", "one is left out", "each"],
)
def test_namespaces_that_nobody_plans_for_are_named(chart: Helm, watched: str, said: bool) -> None:
    """Their agents would wait for ever."""
    flags = ("--set=agent.namespaces={rl,eval}", f"--set=operator.watchNamespaces={{{watched}}}")
    done = chart.run("install", "weightsync", str(CHART), "--dry-run=client", *(flags if watched else flags[:1]))
    assert ("Nobody plans for the agents of eval" in done.stdout) == said, done.stderr


def test_helm_test_runs_where_the_operator_may(chart: Helm) -> None:
    """On a cluster whose every node has a taint it would stay pending else."""
    flags = ("--set=operator.nodeSelector.pool=system", '--set-json=operator.tolerations=[{"key":"dedicated"}]')
    pod = named(chart.hooks(*flags), "Pod", "weightsync-test")["spec"]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"] == [{"key": "dedicated"}]


def test_helm_test_asks_the_api_server_with_its_own_rights(chart: Helm) -> None:
    """One pod, confined as the operator's; it may read one Lease, and create WeightSyncs, as a trial."""
    done = chart.run("template", "weightsync", str(CHART), "--show-only=templates/tests/works.yaml")
    objects = list(yaml.safe_load_all(done.stdout))
    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in objects} == {"test"}
    pod = named(objects, "Pod", "weightsync-test")["spec"]
    compile(pod["containers"][0]["args"][0], "test.py", "exec")
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert rules(objects) == [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [OPERATOR],
            "verbs": ["get"],
        },
        {"apiGroups": ["weightsync.io"], "resources": ["weightsyncs"], "verbs": ["create"]},
    ]


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    """Values and schema name the same keys, so that neither grows without the other."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def compare(value: Json, properties: Json, path: str) -> None:
        assert set(value) == set(properties) - {"global"}, path
        for key, child in value.items():
            nested = properties[key].get("properties")
            if nested:
                compare(child, nested, f"{path}.{key}")

    compare(values, schema["properties"], "values")
