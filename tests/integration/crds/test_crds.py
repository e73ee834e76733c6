"""The CRDs on a real API server: accepted, filled in, and each wrong object refused with a sentence that helps."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.build import manifests
from tests.build.api import GROUP, Api, eventually
from tools.cluster.light import LightCluster

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

CRDS = sorted((Path(__file__).resolve().parents[3] / "crds").glob("*.yaml"))
WEIGHTSYNCS = f"{GROUP}/namespaces/default/weightsyncs"
SLICES = f"{GROUP}/namespaces/default/weightsyncslices"
UID = "6f631bb6-cc69-4b83-aba9-e8a82011944d"


@pytest.fixture(scope="module")
def api(light_cluster: LightCluster) -> Api:
    """The API server with our CRDs."""
    client = Api(
        light_cluster.url, light_cluster.authority, (light_cluster.admin.certificate, light_cluster.admin.key)
    )
    for path in CRDS:
        crd = yaml.safe_load(path.read_text(encoding="utf-8"))
        client.apply(
            f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}", crd, "test"
        )
    eventually("the CRDs are served", lambda: client.find(WEIGHTSYNCS) and client.find(SLICES))
    return client


def changed(path: str, value: Any) -> manifests.Json:
    """A valid WeightSync but for one field."""
    made = copy.deepcopy(manifests.weightsync("bad"))
    place: Any = made
    *parents, last = path.split(".")
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = value
    return made


def selecting(**selector: Any) -> manifests.Json:
    return changed("spec.rollout.selector", selector)


def expressing(operator: str, values: list[str] | None) -> manifests.Json:
    expression: dict[str, Any] = {"key": "tier", "operator": operator}
    return selecting(matchExpressions=[expression | ({"values": values} if values is not None else {})])


BAD = [
    pytest.param(selecting(), "write matchLabels or matchExpressions", id="an empty selector"),
    pytest.param(selecting(matchLabels={}), "write matchLabels or matchExpressions", id="empty labels"),
    pytest.param(
        selecting(matchLabels={"app": "trainer"}), "have the same selector", id="trainer and rollout by equal labels"
    ),
    pytest.param(selecting(matchLabels={"app": "a b"}), "spec.rollout.selector.matchLabels", id="no label value"),
    pytest.param(expressing("In", None), "list at least one in values", id="In without values"),
    pytest.param(expressing("NotIn", []), "list at least one in values", id="NotIn with an empty list"),
    pytest.param(expressing("Exists", ["a"]), "remove values", id="Exists with values"),
    pytest.param(expressing("Matches", ["a"]), '"In", "NotIn", "Exists", "DoesNotExist"', id="an unknown operator"),
    pytest.param(changed("spec.trainer", {}), "spec.trainer.selector: Required value", id="no trainer selector"),
    pytest.param(changed("spec.rollout.initialGate", "Ajar"), '"Open", "Closed"', id="an unknown gate"),
    pytest.param(
        changed("spec.rollout.group", {"by": "Label"}), "the key of the label", id="a label without its key"
    ),
    pytest.param(
        changed("spec.rollout.group", {"by": "Pod", "key": "app"}), "and only then", id="a key that nobody reads"
    ),
    pytest.param(changed("spec.rollout.group", {"by": "Label", "key": "a b"}), "group.key", id="no label key"),
    pytest.param(changed("spec.transfer.bucketSize", "lots"), "spec.transfer.bucketSize", id="no quantity"),
    pytest.param(changed("spec.transfer.bucketSize", "1Ki"), "between 4Ki and 16Gi", id="a bucket below a page"),
    pytest.param(changed("spec.transfer.bucketSize", "1Ti"), "between 4Ki and 16Gi", id="a bucket above the limit"),
    pytest.param(
        changed("spec.transfer.protocol", "EFA"), '"Auto", "RDMA", "TCP"', id="a protocol that is not there"
    ),
    pytest.param(
        changed("spec.strategy.type", "Recreate"), '"Barrier", "Rolling"', id="a strategy that does not exist"
    ),
    pytest.param(changed("spec.strategy.deadlineSeconds", 0), "greater than or equal to 1", id="no time at all"),
    pytest.param(changed("spec.strategy.deadlineSeconds", 3601), "less than or equal to 3600", id="too much time"),
    pytest.param(changed("spec.strategy.deadlineSeconds", 1.5), "must be of type integer", id="half a second"),
    pytest.param(changed("spec.strategy.maxUnavailable", 0), "a count of at least 1", id="no engine may be away"),
    pytest.param(changed("spec.strategy.maxUnavailable", "0%"), "from 1% to 100%", id="a share of nothing"),
    pytest.param(changed("spec.strategy.maxUnavailable", "few"), "from 1% to 100%", id="a share that is a word"),
    pytest.param(changed("spec.strategy.pauseMode", "Freeze"), '"Abort", "Retract", "InPlace"', id="a pause mode"),
    pytest.param(changed("spec.suspend", "yes"), "must be of type boolean", id="no boolean"),
    pytest.param(changed("metadata.name", "n" * 64), "shorten it to 63 characters", id="a name too long for a label"),
    pytest.param(changed("spec", None), "spec: Required value", id="no spec"),
    pytest.param(changed("spec.rollout", None), "spec.rollout: Required value", id="no rollout"),
    pytest.param(changed("spec.trainer", "app=trainer"), "spec.trainer: Invalid value", id="a word for a trainer"),
    pytest.param(selecting(matchLabels=["app"]), "must be of type object", id="a list of labels in place of a map"),
    pytest.param(selecting(matchLabels={"app": "x" * 64}), "may not be more than 63 bytes", id="a label too long"),
    pytest.param(
        selecting(matchLabels={f"l{n}": "x" for n in range(33)}), "must have at most 32 items", id="too many labels"
    ),
    pytest.param(
        selecting(matchExpressions=[{"key": "a", "operator": "Exists"}] * 17),
        "must have at most 16 items",
        id="too many expressions",
    ),
    pytest.param(expressing("In", [f"v{n}" for n in range(33)]), "must have at most 32 items", id="too many values"),
    pytest.param(expressing("DoesNotExist", ["a"]), "remove values", id="DoesNotExist with values"),
    pytest.param(
        selecting(matchExpressions=[{"operator": "Exists"}]), "key: Required value", id="an expression without a key"
    ),
    pytest.param(
        selecting(matchExpressions=[{"key": "a b", "operator": "Exists"}]), "key in body should match", id="no key"
    ),
    pytest.param(
        selecting(matchExpressions=[{"key": "app"}]), "operator: Required value", id="an expression without operator"
    ),
    pytest.param(changed("spec.rollout.group", {"by": "Rack"}), '"LeaderWorkerSet", "Label"', id="engines by racks"),
    pytest.param(changed("spec.transfer.bucketSize", 512), "must be of type string", id="a number for a size"),
    pytest.param(changed("spec.transfer.bucketSize", "64KiB"), "spec.transfer.bucketSize", id="a unit too many"),
    pytest.param(changed("spec.transfer.bucketSize", "-1Mi"), "spec.transfer.bucketSize", id="a size below nothing"),
    pytest.param(changed("spec.strategy.deadlineSeconds", -5), "greater than or equal to 1", id="time that is past"),
    pytest.param(changed("spec.strategy.deadlineSeconds", "60s"), "must be of type integer", id="a unit of time"),
    pytest.param(changed("spec.strategy.maxUnavailable", "101%"), "from 1% to 100%", id="more than all engines"),
    pytest.param(changed("spec.strategy.maxUnavailable", -1), "a count of at least 1", id="a count below nothing"),
    pytest.param(changed("spec.strategy.maxUnavailable", "2"), "from 1% to 100%", id="a count as a word"),
    pytest.param(changed("spec.transfer.relay.fanout", -1), "greater than or equal to 0", id="fewer than none"),
    pytest.param(changed("spec.transfer.relay.fanout", 65), "less than or equal to 64", id="all from one engine"),
    pytest.param(changed("spec.transfer.mode", "Fast"), '"Auto", "Staged", "Direct"', id="a mode"),
    pytest.param(
        changed("spec.trainer.selector", {"matchExpressions": []}),
        "write matchLabels or matchExpressions",
        id="a trainer by no expression",
    ),
    pytest.param(changed("spec.joinPolicy", "Later"), '"Peer", "NextVersion"', id="a policy for those that join"),
    pytest.param(
        changed("spec.transfer.rdma.devices", ["mlx5 0"]), "devices[0] in body should match", id="no device"
    ),
    pytest.param(changed("spec.transfer.rdma.gidIndex", 256), "less than or equal to 255", id="an index too large"),
    pytest.param(changed("spec.transfer.rdma.trafficClass", -1), "greater than or equal to 0", id="no class"),
    pytest.param(changed("spec.transfer.rdma.serviceLevel", 16), "less than or equal to 15", id="a level too high"),
    pytest.param(changed("spec.transfer.rdma.mtu", 1500), '"512", "1024", "2048", "4096"', id="Ethernet's MTU"),
    pytest.param(changed("spec.transfer.rdma.queuePairs", 0), "greater than or equal to 1", id="no connection"),
]


def leaves(schema: manifests.Json, path: str = "spec") -> set[str]:
    """Dotted paths of all fields that hold a value; those of selectors' expressions count as one."""
    inner = schema.get("properties", {})
    return set().union(*(leaves(part, f"{path}.{name}") for name, part in inner.items())) if inner else {path}


def written(value: Any, path: str = "spec") -> set[str]:
    """Dotted paths of what a document says."""
    below = value.items() if isinstance(value, dict) else ()
    return {path}.union(*(written(part, f"{path}.{name}") for name, part in below))


def test_every_field_has_a_wrong_value_in_the_table() -> None:
    """So that none is added whose mistakes nobody has seen."""
    (crd,) = (yaml.safe_load(path.read_text()) for path in CRDS if path.name.startswith("weightsyncs."))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    objects: list[Any] = [case.values[0] for case in BAD]
    said = set().union(*(written(made["spec"]) for made in objects))
    assert leaves(spec) - said == set()


def test_the_crds_are_accepted(api: Api) -> None:
    """Names are taken, the kinds are served, and nothing of the schemas is found to be not structural."""
    for path in CRDS:
        name = path.name.removesuffix(".yaml")

        def settled(name: str = name) -> dict[str, str]:
            crd = api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
            return {c["type"]: c["status"] for c in crd["status"]["conditions"]}

        eventually("Established", lambda: settled().get("Established") == "True")
        assert settled()["NamesAccepted"] == "True"
        assert "NonStructuralSchema" not in settled()


@pytest.mark.parametrize(("bad", "sentence"), BAD)
def test_bad_objects_are_refused(api: Api, bad: manifests.Json, sentence: str) -> None:
    """422 at admission, with the sentence that says what to change."""
    answer = api.call("POST", WEIGHTSYNCS, bad)
    assert answer.status == 422
    assert sentence in answer.message


def test_defaults_are_filled_in(api: Api) -> None:
    """The shortest object becomes what the code obeys."""
    api.call("DELETE", f"{WEIGHTSYNCS}/short")
    made = api.create(WEIGHTSYNCS, manifests.weightsync("short"))
    api.delete(f"{WEIGHTSYNCS}/short")
    assert made["spec"]["transfer"] == {
        "protocol": "Auto", "rdma": {}, "relay": {"fanout": 2}, "mode": "Auto", "bucketSize": "512Mi"
    }  # fmt: skip
    assert made["spec"]["strategy"] == {
        "type": "Barrier",
        "maxUnavailable": "25%",
        "deadlineSeconds": 60,
        "pauseMode": "Retract",
    }
    assert made["spec"]["rollout"]["initialGate"] == "Open"
    assert made["spec"]["suspend"] is False


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            {"trainer": {"selector": {"matchExpressions": [{"key": "t", "operator": "Exists"}]}}}, id="exists"
        ),
        pytest.param({"transfer": {"bucketSize": "4Ki"}}, id="the smallest bucket"),
        pytest.param({"strategy": {"type": "Rolling", "maxUnavailable": 3}}, id="a count of engines"),
        pytest.param(
            {
                "rollout": {
                    "selector": {"matchLabels": {"app": "rollout"}},
                    "group": {"by": "Label", "key": "example.com/engine"},
                }
            },
            id="engines by a label",
        ),
        pytest.param({"strategy": {"type": "Rolling", "maxUnavailable": "100%"}}, id="a share of all engines"),
        pytest.param({"transfer": {"bucketSize": "16Gi"}, "strategy": {"pauseMode": "InPlace"}}, id="the largest"),
        pytest.param({"suspend": True}, id="suspended"),
    ],
)
def test_good_objects_are_accepted(api: Api, spec: dict[str, Any]) -> None:
    """The rules refuse nothing that is right."""
    answer = api.call("POST", f"{WEIGHTSYNCS}?dryRun=All", manifests.weightsync("good", **spec))
    assert answer.status == 201, answer.message


def test_unknown_fields_are_named(api: Api) -> None:
    """With strict validation, as kubectl asks for it, a field that nothing obeys yet is an error."""
    answer = api.call("POST", f"{WEIGHTSYNCS}?fieldValidation=Strict", changed("spec.relay", {"fanout": 2}))
    assert answer.status == 400
    assert 'unknown field "spec.relay"' in answer.message


def test_a_slice_never_changes(api: Api) -> None:
    """Its content is its name: only metadata may be edited."""
    api.call("DELETE", f"{SLICES}/part")
    rank = {"rank": 0, "worldSize": 1, "stage": 0, "stages": 1, "nonce": "1" * 16}
    source = {"uid": UID, "pod": "trainer-0", "address": "10.0.0.1:8960", "ranks": [rank]}
    made = api.create(
        SLICES,
        {
            "apiVersion": "weightsync.io/v1alpha1",
            "kind": "WeightSyncSlice",
            "metadata": {"name": "part"},
            "spec": {"sources": [source]},
        },
    )
    made["spec"]["sources"][0]["address"] = "10.0.0.2:8960"
    answer = api.call("PUT", f"{SLICES}/part", made)
    api.delete(f"{SLICES}/part")
    assert answer.status == 422
    assert "a slice is named by its content and never changes" in answer.message


def test_columns_say_what_matters(api: Api) -> None:
    """`kubectl get ws` shows readiness, its reason, the version, and how many engines have it."""
    crd = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/weightsyncs.weightsync.io")
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["Ready", "Reason", "Version", "Engines", "Current", "Age"]
    assert crd["spec"]["names"]["shortNames"] == ["ws"]


def test_no_category_is_named_like_a_kind(api: Api) -> None:
    """kubectl looks for categories first: `kubectl get weightsync NAME` would ask two kinds for a name, and fail."""
    for path in CRDS:
        crd = api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{path.name.removesuffix('.yaml')}")
        names = crd["spec"]["names"]
        assert not {names["plural"], names["singular"], *names["shortNames"]} & set(names["categories"])
