"""deploy/kubernetes, built by Kustomize: valid for kubeconform by the schemas of Kubernetes and KEDA, and correct in what no schema checks."""

from __future__ import annotations

import asyncio
import copy
import ipaddress
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml

from mulligan import Agent
from mulligan.client.settings import Settings, settings
from mulligan.durations import seconds

ROOT = Path(__file__).parent.parent.parent
KUBERNETES = ROOT / "deploy/kubernetes"
VERSIONS = ("1.31.0", "1.37.0")  # of Kubernetes: the oldest supported one, and the newest that has schemas
OF_KUBERNETES = (
    *("namespace-v1", "serviceaccount-v1", "networkpolicy-networking-v1", "configmap-v1", "deployment-apps-v1"),
    "poddisruptionbudget-policy-v1",
)
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"

Manifest = dict[str, Any]


async def build(program: Path, folder: Path) -> list[Manifest]:
    """The manifests that `kubectl apply -k` would send."""
    process = await asyncio.create_subprocess_exec(
        program, "build", folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert err == b""
    return list(yaml.safe_load_all(out))


@pytest.fixture(scope="module")
async def shared(kustomize_program: Path) -> list[Manifest]:
    """The manifests that all versions share."""
    return await build(kustomize_program, KUBERNETES / "namespace")


@pytest.fixture(scope="module")
async def version(kustomize_program: Path) -> list[Manifest]:
    """The manifests of the version in the checkout."""
    return await build(kustomize_program, KUBERNETES / "versions/0.1.0")


@pytest.fixture(scope="module")
async def next_version(kustomize_program: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """A next version, made as docs/versions.md describes: a copy of the folder with another tag and suffix."""
    tree = tmp_path_factory.mktemp("deploy") / "kubernetes"
    shutil.copytree(KUBERNETES, tree)
    made = shutil.copytree(tree / "versions/0.1.0", tree / "versions/0.2.0") / "kustomization.yaml"
    text = made.read_text()
    made.write_text(text.replace("newTag: 0.1.0", "newTag: 0.2.0").replace("nameSuffix: -0-1-0", "nameSuffix: -0-2-0"))
    return await build(kustomize_program, made.parent)


def only(kind: str, manifests: list[Manifest]) -> Manifest:
    [found] = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def pod_of(manifests: list[Manifest]) -> Manifest:
    spec: Manifest = only("Deployment", manifests)["spec"]["template"]["spec"]
    return spec


def environment(manifests: list[Manifest]) -> dict[str, str]:
    """The variables of the container, without those from Secrets and from the pod's own fields."""
    [container] = pod_of(manifests)["containers"]
    config = only("ConfigMap", manifests)
    assert {"configMapRef": {"name": config["metadata"]["name"]}} in container["envFrom"]
    return {**config["data"], **{each["name"]: each["value"] for each in container["env"] if "value" in each}}


def crd_schema(keda_schemas: Path, kind: str) -> Manifest:
    """The schema of a custom resource, which refuses unknown fields as the API server does."""
    crd = yaml.safe_load((keda_schemas / f"config/crd/bases/keda.sh_{kind.lower()}s.yaml").read_text())
    [schema] = [each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"] if each["name"] == "v1alpha1"]
    schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True

    def close(node: Any) -> None:
        for below in node.values() if isinstance(node, dict) else ():
            close(below)
        if isinstance(node, dict) and "properties" in node and "x-kubernetes-preserve-unknown-fields" not in node:
            node.setdefault("additionalProperties", False)

    close(schema)
    return dict(schema)


@pytest.fixture(scope="module")
def schemas(keda_schemas: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each version of Kubernetes with its strict schemas and those of KEDA's resources, named as kubeconform wants."""
    folder = tmp_path_factory.mktemp("schemas")
    for each in VERSIONS:
        (folder / f"v{each}").mkdir()
        for name in ("_definitions", *OF_KUBERNETES):
            text = (SCHEMAS / f"v{each}-local-strict/{name}.json").read_text()
            # By their own ids they would be looked for at a server.
            schema = json.loads(text.replace('"/api/_definitions.json', '"_definitions.json'))
            schema.pop("$id", None)
            (folder / f"v{each}/{name}.json").write_text(json.dumps(schema))
        for kind in ("ScaledObject", "TriggerAuthentication"):
            schema = crd_schema(keda_schemas, kind)
            (folder / f"v{each}/{kind.lower()}-keda-v1alpha1.json").write_text(json.dumps(schema))
    return folder


def faults(program: Path, schemas: Path, manifests: list[Manifest]) -> list[str]:
    """What kubeconform says of manifests that are not valid, or whose schema it does not find."""
    location = f"{schemas}/{{{{.NormalizedKubernetesVersion}}}}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    found = []
    for each in VERSIONS:
        command: list[str | Path] = [
            program,
            "-strict",
            "-output",
            "json",
            "-kubernetes-version",
            each,
            "-schema-location",
            location,
        ]
        told = subprocess.run(command, input=yaml.safe_dump_all(manifests), capture_output=True, text=True, check=False)
        assert told.stderr == ""
        found += [f"{fault['kind']}: {fault['msg']}" for fault in json.loads(told.stdout)["resources"]]
    return found


def test_each_manifest_is_valid_by_the_schemas_of_kubernetes_and_keda(
    shared: list[Manifest], version: list[Manifest], kubeconform_program: Path, schemas: Path
) -> None:
    assert {each["kind"] for each in (*shared, *version)} == {
        *("Namespace", "NetworkPolicy", "ServiceAccount", "ConfigMap", "Deployment", "PodDisruptionBudget"),
        *("ScaledObject", "TriggerAuthentication"),
    }
    assert faults(kubeconform_program, schemas, [*shared, *version]) == []


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", "spec.template.spec.terminationGracePeriodSeconds"),
        ("Deployment", "spec.template.spec.containers.0.livenessProbe.httpGet.path"),
        ("PodDisruptionBudget", "spec.maxUnavailable"),
        ("ScaledObject", "spec.minReplicaCount"),
        ("ScaledObject", "spec.triggers.0.authenticationRef.name"),
        ("TriggerAuthentication", "spec.secretTargetRef.0.key"),
    ],
)
def test_the_schemas_reject_a_wrong_manifest(
    version: list[Manifest], kubeconform_program: Path, schemas: Path, kind: str, path: str
) -> None:
    """Otherwise `test_each_manifest_is_valid_by_the_schemas_of_kubernetes_and_keda` would prove nothing."""
    manifest = copy.deepcopy(only(kind, version))
    part: Any = manifest
    *above, last = path.split(".")
    for name in above:
        part = part[int(name) if name.isdigit() else name]
    part[f"{last}s"] = part.pop(last)
    found = faults(kubeconform_program, schemas, [manifest])
    assert len(found) == len(VERSIONS)
    assert all(f"{last}s" in fault for fault in found)


def test_the_metadata_of_the_trigger_is_known_to_keda(version: list[Manifest], keda_schemas: Path) -> None:
    """KEDA accepts any metadata of a trigger, and reports errors only at run time."""
    scalers = json.loads((keda_schemas / "schema/generated/scalers-schema.json").read_text())["scalers"]
    [trigger] = only("ScaledObject", version)["spec"]["triggers"]
    [parameters] = [each["parameters"] for each in scalers if each["type"] == trigger["type"]]
    lasting = [each for each in parameters if "deprecated" not in each]
    taken = {each["name"] for each in lasting if each.get("metadataVariableReadable")}
    taken |= {f"{each['name']}FromEnv" for each in lasting if each.get("envVariableReadable")}
    assert set(trigger["metadata"]) <= taken
    needed = {each["name"] for each in parameters if not each.get("optional") and "default" not in each}
    assert needed <= {name.removesuffix("FromEnv") for name in trigger["metadata"]}
    authentication = only("TriggerAuthentication", version)["spec"]["secretTargetRef"]
    readable = {each["name"] for each in parameters if each.get("triggerAuthenticationVariableReadable")}
    assert {each["parameter"] for each in authentication} <= readable


def test_the_worker_knows_each_setting_of_the_manifests(
    version: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And accepts its value."""
    given = environment(version)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    chosen = settings()
    assert (chosen.deployment_name, chosen.build_id) == ("mulligan-worker", "0.1.0")
    ours = {name.removeprefix("MULLIGAN_").lower() for name in given if name.startswith("MULLIGAN_")}
    assert ours - {"workspace"} <= set(Settings.model_fields)


def test_grace_periods_let_a_model_call_finish_during_a_deploy(version: list[Manifest]) -> None:
    """model timeout < grace period of the worker < termination grace period of the pod."""
    pod, [container] = pod_of(version), pod_of(version)["containers"]
    grace = float(environment(version)["MULLIGAN_GRACE_SECONDS"])
    assert seconds(Agent(name="any", model="scripted:any").model_timeout) < grace
    assert grace + 10 <= pod["terminationGracePeriodSeconds"]
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] < grace
    assert only("Deployment", version)["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_probes_use_the_port_and_paths_of_the_worker(version: list[Manifest]) -> None:
    [container] = pod_of(version)["containers"]
    host, _, port = environment(version)["MULLIGAN_HEALTH_ADDRESS"].rpartition(":")
    assert host in {"0.0.0.0", "[::]"}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {ports[probe["port"]] for probe in asked.values()} == {int(port)}
    assert asked["readiness"]["path"] == "/readyz"
    # A worker that cannot reach Temporal must not be restarted for it.
    assert asked["startup"]["path"] == asked["liveness"]["path"] == "/livez"


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    wanted: dict[str, str] = selector["matchLabels"]
    return bool(wanted) and wanted.items() <= labels.items()


def selectors(manifests: list[Manifest]) -> Iterator[Manifest]:
    yield only("Deployment", manifests)["spec"]["selector"]
    yield only("PodDisruptionBudget", manifests)["spec"]["selector"]
    for spread in pod_of(manifests)["topologySpreadConstraints"]:
        yield spread["labelSelector"]


def test_two_versions_can_be_deployed_side_by_side(version: list[Manifest], next_version: list[Manifest]) -> None:
    """The build id is the tag of the image. No manifest of one version has a name of the other, or selects its pods."""
    for manifests, tag in ((version, "0.1.0"), (next_version, "0.2.0")):
        [container] = pod_of(manifests)["containers"]
        assert container["image"].endswith(f":{tag}")
        assert environment(manifests)["TEMPORAL_WORKER_BUILD_ID"] == tag
        assert "set-by-the-version" not in yaml.safe_dump_all(manifests)
    old, new = (only("Deployment", each)["spec"]["template"]["metadata"]["labels"] for each in (version, next_version))
    assert [(selects(each, old), selects(each, new)) for each in selectors(version)] == [(True, False)] * 4
    assert [(selects(each, old), selects(each, new)) for each in selectors(next_version)] == [(False, True)] * 4
    names = [{(each["kind"], each["metadata"]["name"]) for each in manifests} for manifests in (version, next_version)]
    assert not names[0] & names[1]


def test_keda_scales_this_version_by_its_own_backlog(version: list[Manifest]) -> None:
    scaled = only("ScaledObject", version)["spec"]
    assert scaled["scaleTargetRef"]["name"] == only("Deployment", version)["metadata"]["name"]
    assert "replicas" not in only("Deployment", version)["spec"]
    # Without a pod the server does not know the version, and runs of a draining version make no progress.
    assert 1 <= scaled.get("idleReplicaCount", 1) <= scaled["minReplicaCount"] < scaled["maxReplicaCount"]
    [trigger] = scaled["triggers"]
    authentication = only("TriggerAuthentication", version)
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    given = environment(version)
    read = {name.removesuffix("FromEnv"): given[of] for name, of in trigger["metadata"].items() if name.endswith("Env")}
    assert read == {
        "endpoint": given["TEMPORAL_ADDRESS"],
        "namespace": given["TEMPORAL_NAMESPACE"],
        "taskQueue": given["MULLIGAN_TASK_QUEUE"],
        "workerDeploymentName": given["TEMPORAL_DEPLOYMENT_NAME"],
        "workerDeploymentBuildId": given["TEMPORAL_WORKER_BUILD_ID"],
    }
    [container] = pod_of(version)["containers"]
    [key] = authentication["spec"]["secretTargetRef"]
    assert {"secretRef": {"name": key["name"]}} in container["envFrom"]


def test_pods_have_restricted_rights_and_a_read_only_file_system(
    shared: list[Manifest], version: list[Manifest]
) -> None:
    """The namespace enforces Kubernetes' Pod Security Standard `restricted`."""
    pod, [container] = pod_of(version), pod_of(version)["containers"]
    assert only("Namespace", shared)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == only("ServiceAccount", shared)["metadata"]["name"]
    assert {each["metadata"]["namespace"] for each in (*shared, *version) if each["kind"] != "Namespace"} == {
        "mulligan"
    }


def test_the_pod_has_the_user_and_the_writable_folders_of_the_image(version: list[Manifest]) -> None:
    """Its user, and the folders that it writes to."""
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    pod, [container] = pod_of(version), pod_of(version)["containers"]
    [user] = re.findall(r"^USER (\d+):\1$", dockerfile, re.MULTILINE)
    assert {pod["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounted == {"/tmp", environment(version)["MULLIGAN_WORKSPACE"]}
    assert "HOME=/tmp" in dockerfile
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_the_network_policy_lets_a_worker_reach_what_it_needs(shared: list[Manifest], version: list[Manifest]) -> None:
    policy = only("NetworkPolicy", shared)["spec"]
    assert selects(policy["podSelector"], only("Deployment", version)["spec"]["template"]["metadata"]["labels"])
    assert (policy["ingress"], policy["policyTypes"]) == ([], ["Ingress", "Egress"])
    given = environment(version)
    in_cluster = {
        int(given["TEMPORAL_ADDRESS"].rpartition(":")[2]),
        urlsplit(given["OTEL_EXPORTER_OTLP_ENDPOINT"]).port,
    }
    dns, inside, outside = ({each["port"] for each in rule["ports"]} for rule in policy["egress"])
    assert (dns, inside, outside) == ({53}, in_cluster, {443, 7233})
    blocks = [peer["ipBlock"] for rule in policy["egress"] for peer in rule.get("to", ()) if "ipBlock" in peer]
    private = "10.0.0.1 172.20.0.1 192.168.0.1 100.64.0.1 169.254.169.254 fd00::1 fe80::1"
    for address in map(ipaddress.ip_address, private.split()):
        [block] = [each for each in blocks if address in ipaddress.ip_network(each["cidr"])]
        assert any(address in ipaddress.ip_network(each) for each in block["except"]), address
