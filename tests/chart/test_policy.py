"""The chart's admission policy on a real API server: an agent writes its own pod's status, and of it its own parts.

Every refusal says what is allowed. Tokens come from the API server, bound to pods, as the kubelet projects them.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.build.api import APPLY, Answer, Api, eventually
from tests.build.charts import Helm, Json
from tests.integration.agent_periphery.conftest import Space
from tools.cluster.light import LightCluster
from weightsync import names
from weightsync.announcement import Announcement
from weightsync.report import Report
from weightsync_agent.own_pod.base import Identity
from weightsync_agent.own_pod.cluster import KubernetesOwnPod

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

NAMESPACE = "policy"
ACCOUNT = "weightsync-agent"
MERGE = "application/merge-patch+json"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-01T12:00:00Z"}
GATE = {"type": names.GATE, "status": "True", "reason": "Current", "lastTransitionTime": "2026-05-01T12:00:00Z"}
OWN = "may write the status of its own pod only"


class Scene:
    """A namespace with the chart's agent rights and policy, two pods, and whoever writes to them."""

    def __init__(self, cluster: LightCluster, space: Space) -> None:
        self.space = space
        self.own = space.pod("rollout-0", {"app": "rollout"})
        self.other = space.pod("rollout-1", {"app": "rollout"})
        self.cluster = cluster
        self.agent = self.api(space.token(self.own))
        self.unbound = self.api(self._unbound(ACCOUNT))

    def api(self, token: str) -> Api:
        """A client that shows ``token``."""
        return Api(self.cluster.url, self.cluster.authority, token=token)

    def _unbound(self, account: str) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"{self.space.core}/serviceaccounts/{account}/token"
        return str(self.space.call("POST", path, body)["status"]["token"])

    def controller(self) -> Api:
        """A program of the namespace that is no agent, with the same right to write pods' status."""
        path = f"{self.space.core}/serviceaccounts"
        self.space.call("POST", path, {"metadata": {"name": "controller"}})
        subject = {"kind": "ServiceAccount", "name": "controller", "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
        body = {"metadata": {"name": "controller"}, "roleRef": role, "subjects": [subject]}
        self.space.call("POST", PATHS["RoleBinding"].format(namespace=NAMESPACE), body)
        return self.api(self._unbound("controller"))

    def patch(
        self, api: Api, pod: Identity, body: Json, content: str = MERGE, headers: dict[str, str] | None = None
    ) -> Answer:
        """As a trial: admission is asked, and nothing is kept."""
        path = f"{self.space.core}/pods/{pod.name}/status?dryRun=All"
        path += f"&fieldManager={names.MANAGER_AGENT}&force=true" if content == APPLY else ""
        api.headers.update(headers or {})
        try:
            return api.call("PATCH", path, body, content)
        finally:
            for name in headers or {}:
                del api.headers[name]

    def administrator(self) -> Api:
        """Who may do all, and may say that it is somebody else."""
        admin = self.cluster.admin
        return Api(self.cluster.url, self.cluster.authority, (admin.certificate, admin.key))


@pytest.fixture(scope="module")
def scene(light_cluster: LightCluster, chart: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The chart's agent part, installed; the policy acts."""
    space = Space(light_cluster, NAMESPACE, tmp_path_factory.mktemp("policy"), ACCOUNT)
    space.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    flags = (f"--set=agent.namespaces={{elsewhere,{NAMESPACE}}}", "--set=crds.install=false")
    made = [(_path(one), one) for one in chart.objects(*flags) if _wanted(one)]
    assert {one["kind"] for _, one in made} == set(PATHS)
    for path, one in made:
        space.call("POST", path, one)
    found = Scene(light_cluster, space)
    _settle(found)
    eventually("the policy acts", lambda: found.patch(found.agent, found.other, {}).status == 403)
    yield found
    for path, one in reversed(made):
        if one["kind"] != "ServiceAccount":
            space.call("DELETE", f"{path}/{one['metadata']['name']}")


def _wanted(made: Json) -> bool:
    """The agents' part, of this namespace or of the cluster."""
    return (
        made["kind"] in PATHS
        and "operator" not in made["metadata"]["name"]
        and made["metadata"]["name"] == ACCOUNT
        and made["metadata"].get("namespace", NAMESPACE) == NAMESPACE
    )


def _path(made: Json) -> str:
    return PATHS.get(made["kind"], "").format(namespace=NAMESPACE)


def _settle(scene: Scene) -> None:
    """The pods as kubelets and users leave them: labels, annotations, a finalizer, conditions, addresses."""
    for pod in (scene.own, scene.other):
        seen = scene.space.read(pod)
        seen["metadata"] |= {"annotations": {"theirs": "1"}, "finalizers": ["x.test/hold"]}
        seen = scene.space.call("PUT", f"{scene.space.core}/pods/{pod.name}", seen)
        seen["status"] = {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
        seen["status"]["conditions"] = [READY]
        scene.space.call("PUT", f"{scene.space.core}/pods/{pod.name}/status", seen)


def annotated(**values: str | None) -> Json:
    """A merge patch of annotations; own ones by the last word of their names."""
    own = {"agent": names.ANNOUNCEMENT, "report": names.REPORT}
    return {"metadata": {"annotations": {own.get(key, key): value for key, value in values.items()}}}


@pytest.mark.parametrize(
    ("body", "content"),
    [
        pytest.param({}, MERGE, id="nothing"),
        pytest.param(annotated(agent="{}"), MERGE, id="its announcement"),
        pytest.param(annotated(report="{}"), MERGE, id="its report"),
        pytest.param({"status": {"conditions": [READY, GATE]}}, MERGE, id="its condition after the kubelet's"),
        pytest.param({"status": {"conditions": [GATE, READY]}}, MERGE, id="its condition before the kubelet's"),
        pytest.param(
            {"apiVersion": "v1", "kind": "Pod", **annotated(agent="{}"), "status": {"conditions": [GATE]}},
            APPLY,
            id="both in one apply",
        ),
        pytest.param({"spec": {"priority": 7}}, MERGE, id="a spec, which the server itself leaves as it was"),
    ],
)
def test_an_agent_may_say_its_own(scene: Scene, body: Json, content: str) -> None:
    """With the token of its own pod: announcement, report, condition."""
    answer = scene.patch(scene.agent, scene.own, body, content)
    assert answer.status == 200, answer.message
    assert answer.body["spec"] == scene.space.read(scene.own)["spec"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"metadata": {"labels": {"app": "trainer"}}}, "may not change labels", id="a label"),
        pytest.param({"metadata": {"labels": {"new": "x"}}}, "may not change labels", id="a new label"),
        pytest.param({"metadata": {"labels": None}}, "may not change labels", id="no label any more"),
        pytest.param({"metadata": {"finalizers": None}}, "finalizers or other metadata", id="a finalizer's end"),
        pytest.param({"metadata": {"finalizers": ["x.test/hold", "x.test/more"]}}, "finalizers", id="a finalizer"),
        pytest.param(annotated(other="x"), "weightsync.io/report only", id="another annotation"),
        pytest.param(annotated(theirs="2"), "weightsync.io/report only", id="another's annotation"),
        pytest.param(annotated(theirs=None), "weightsync.io/report only", id="another's annotation's end"),
        pytest.param({"metadata": {"annotations": None}}, "weightsync.io/report only", id="all annotations' end"),
        pytest.param(annotated(agent="{}", other="x"), "weightsync.io/report only", id="another beside its own"),
        pytest.param(
            {"status": {"conditions": [READY | {"status": "False"}, GATE]}},
            "of its pod's conditions",
            id="the kubelet's condition",
        ),
        pytest.param(
            {"status": {"conditions": [GATE]}}, "of its pod's conditions", id="the kubelet's condition's end"
        ),
        pytest.param(
            {"status": {"conditions": [READY, GATE, {"type": "Other", "status": "True"}]}},
            "of its pod's conditions",
            id="a new condition",
        ),
        pytest.param({"status": {"phase": "Failed"}}, "of its pod's status", id="the phase"),
        pytest.param(
            {"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}},
            "of its pod's status",
            id="the addresses",
        ),
        pytest.param({"status": {"message": "x"}}, "of its pod's status", id="a message"),
        pytest.param(
            {"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": True}]}},
            "of its pod's status",
            id="a container's status",
        ),
    ],
)
def test_an_agent_may_say_nothing_else(scene: Scene, body: Json, words: str) -> None:
    """Labels, other annotations, finalizers, other conditions, the rest of the status: 403 that names what it may."""
    refused(scene.patch(scene.agent, scene.own, body), words)


def test_another_pod_is_refused(scene: Scene) -> None:
    """Whatever would be written there."""
    for body in ({}, annotated(agent="{}"), {"metadata": {"labels": {"a": "b"}}}):
        refused(scene.patch(scene.agent, scene.other, body), OWN)


def test_a_token_without_a_pod_is_refused(scene: Scene) -> None:
    """A token of the account that no kubelet made writes nobody's status; the sentence says where to get one."""
    refused(scene.patch(scene.unbound, scene.own, annotated(agent="{}")), f"{OWN}, and this token names no pod")


@pytest.mark.parametrize(
    ("name", "uid", "words"),
    [
        pytest.param("rollout-0", "own", "", id="its own"),
        pytest.param("rollout-0", "another", "another pod's", id="a pod of the same name that was replaced"),
        pytest.param("rollout-1", "own", "another pod's", id="another name with its uid"),
        pytest.param("rollout-0", "", "names no pod", id="no uid"),
        pytest.param("", "own", "names no pod", id="no name"),
    ],
)
def test_name_and_uid_must_both_be_the_pods(scene: Scene, name: str, uid: str, words: str) -> None:
    """Neither half of the proof is enough."""
    prefix = "Impersonate-Extra-authentication.kubernetes.io%2Fpod-"
    shown = {"name": name, "uid": scene.own.uid if uid == "own" else uid}
    headers = {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"}
    headers |= {f"{prefix}{key}": value for key, value in shown.items() if value}
    answer = scene.patch(scene.administrator(), scene.own, annotated(agent="{}"), headers=headers)
    if words:
        refused(answer, words)
    else:
        assert answer.status == 200, answer.message


def test_nobody_else_is_looked_at(scene: Scene) -> None:
    """A kubelet, a user and a controller with a token without a pod go on writing what they may."""
    kubelet = {"Impersonate-User": "system:node:node-1", "Impersonate-Group": "system:nodes"}
    body = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}}
    answers = [
        scene.patch(scene.administrator(), scene.own, body, headers=kubelet),
        scene.patch(scene.administrator(), scene.own, body),
        scene.patch(scene.controller(), scene.own, body),
    ]
    assert {answer.status for answer in answers} == {200}, [answer.message for answer in answers]


def test_the_administrator_still_reads_what_was_refused(scene: Scene) -> None:
    """Nothing of all the refused writes stayed."""
    seen = scene.space.read(scene.own)
    assert seen["metadata"]["labels"] == {"app": "rollout"}
    assert seen["metadata"]["annotations"] == {"theirs": "1"}
    assert [condition["type"] for condition in seen["status"]["conditions"]] == ["Ready"]


async def test_an_agent_works_with_the_charts_rights_under_the_policy(scene: Scene) -> None:
    """Announcement, gate and report are written, changed and written again; there is no right to read pods."""
    pod = scene.space.pod("rollout-2", {"app": "rollout"})
    async with scene.space.api(pod) as api:
        own = KubernetesOwnPod(api, pod, report_seconds=0.0)
        await own.start()
        for ready in (False, True):
            own.announce(Announcement(address="10.0.0.7:8960", ready=ready))
            own.set_gate(ready, "Current")
            own.report(Report(term=int(ready)))
            await own.settled()
            assert own.problem == ""
        await own.stop()
    seen: dict[str, Any] = scene.space.read(pod)
    assert json.loads(seen["metadata"]["annotations"][names.ANNOUNCEMENT])["ready"] is True
    assert scene.api(scene.space.token(pod)).call("GET", f"{scene.space.core}/pods/{pod.name}").status == 403


def refused(answer: Answer, words: str) -> None:
    """403, in words that say what is allowed."""
    assert answer.status == 403, f"{answer.status} {answer.message}"
    assert words in answer.message
