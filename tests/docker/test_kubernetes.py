"""The manifests of docker/kubernetes: valid for Kubernetes, and true of the service that they run."""

import copy
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from export.contract.processors import usable_cpus
from service.http.graceful_server import LINGER_S
from service.inference.providers import LARGEST_BATCH
from service.settings import PREFIX, Settings
from tests.support.code_blocks import blocks
from tests.support.live_service import live_service, settings_for
from tests.support.paths import ROOT
from tests.support.tiny_bundle import write_bundle

KUBERNETES = ROOT / "docker" / "kubernetes"
FOLDERS = ("base", "models-volume", "kserve")
KEY_FILES, GPU = COMPONENTS = ("key-files", "gpu")  # are put into them
# Of Kubernetes: the oldest that the page names, and the newest.
VERSIONS = ("1.30", kubernetes_validate.latest_version().rpartition(".")[0])
DOCKERFILE = (ROOT / "docker" / "service.Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
UNITS = {"": 1, "k": 1000, "Mi": 2**20, "Gi": 2**30}

Manifest = dict[str, Any]


def read(path: str) -> Any:
    return yaml.safe_load((KUBERNETES / path).read_text())


def resources(folder: str) -> list[Manifest]:
    """The resources of a folder, with those that its kustomization takes from others, and patched."""
    kustomization = read(f"{folder}/kustomization.yaml")
    found: list[Manifest] = []
    for name in kustomization["resources"]:
        if name.endswith(".yaml"):
            found.append(read(f"{folder}/{name}"))
        else:
            found += resources((KUBERNETES / folder / name).resolve().name)
    for patch in kustomization.get("patches", []):
        target = patch["target"]
        (one,) = [each for each in found if is_target(each, target)]
        apply_patch(one, read(f"{folder}/{patch['path']}"))
    return found


def is_target(manifest: Manifest, target: dict[str, str]) -> bool:
    version = f"{target['group']}/{target['version']}", target["kind"], target["name"]
    return version == (manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])


def apply_patch(manifest: Manifest, operations: list[dict[str, Any]]) -> None:
    """JSON patch (RFC 6902), as far as the folders need it."""
    for operation in operations:
        *steps, end = operation["path"].removeprefix("/").split("/")
        place: Any = manifest
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        end = end.replace("~1", "/")
        if end == "-":
            assert operation["op"] == "add"
            place.append(operation["value"])
        else:
            assert operation["op"] == ("replace" if end in place else "add")
            place[end] = operation["value"]


def one(folder: str, kind: str) -> Manifest:
    (found,) = [manifest for manifest in resources(folder) if manifest["kind"] == kind]
    return found


def pod(folder: str = "base") -> Manifest:
    return one(folder, "Deployment")["spec"]["template"]["spec"]


def container(folder: str = "base") -> Manifest:
    (found,) = pod(folder)["containers"]
    return found


def quantity(text: str) -> int:
    """Bytes, or another number, as Kubernetes writes it."""
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
    return int(number) * UNITS[unit]


def image_variable(name: str) -> str:
    """An environment variable of the image."""
    (value,) = re.findall(rf"\b{name}=(\S+)", DOCKERFILE)
    return value


def known_to_kubernetes() -> Iterator[tuple[str, Manifest]]:
    for folder in FOLDERS:
        for manifest in resources(folder):
            if manifest["kind"] != "InferenceService":
                yield f"{folder}-{manifest['kind']}", manifest


# Kubernetes


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "manifest", [pytest.param(manifest, id=name) for name, manifest in known_to_kubernetes()]
)
def test_every_resource_is_valid(manifest, version):
    assert kubernetes_validate.validate(manifest, version, strict=True) == version


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_kustomization_lists_every_file_of_its_folder(folder):
    kustomization = read(f"{folder}/kustomization.yaml")
    assert kustomization.keys() <= {"apiVersion", "kind", "resources", "patches"}
    assert (kustomization["apiVersion"], kustomization["kind"]) == (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
    )
    listed = [*kustomization["resources"], *(patch["path"] for patch in kustomization.get("patches", []))]
    files = {path.name for path in (KUBERNETES / folder).iterdir()} - {"kustomization.yaml"}
    assert {name for name in listed if not name.startswith("../")} == files
    assert len(set(listed)) == len(listed)


def test_no_folder_is_left_out_here():
    assert {path.name for path in KUBERNETES.iterdir() if path.is_dir()} == {*FOLDERS, *COMPONENTS}


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_lists_every_file_of_its_folder(component):
    kustomization = read(f"{component}/kustomization.yaml")
    assert kustomization.keys() == {"apiVersion", "kind", "patches"}
    assert (kustomization["apiVersion"], kustomization["kind"]) == (
        "kustomize.config.k8s.io/v1alpha1",
        "Component",
    )
    files = {path.name for path in (KUBERNETES / component).iterdir()} - {"kustomization.yaml"}
    assert {patch["path"] for patch in kustomization["patches"]} == files


def test_selectors_name_the_labels_of_the_pods():
    deployment = one("base", "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert one("base", "Service")["spec"]["selector"] == labels
    assert one("base", "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert one("base", "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    (spread,) = pod()["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels


def test_what_is_mounted_is_a_volume_and_every_volume_is_mounted():
    for folder in ("base", "models-volume"):
        mounted = {mount["name"] for mount in container(folder)["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod(folder)["volumes"]}
    claims = [volume.get("persistentVolumeClaim") for volume in pod("models-volume")["volumes"]]
    (claim,) = filter(None, claims)
    assert claim["claimName"] == one("models-volume", "PersistentVolumeClaim")["metadata"]["name"]


# The service


def test_the_image_is_the_one_that_compose_builds():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert "build" in COMPOSE["services"]["service"]
    assert "image" not in COMPOSE["services"]["service"]  # so compose calls it by project and service
    assert container()["image"] == f"{COMPOSE['name']}-service:{version}"


def test_the_port_is_the_images():
    (port,) = container()["ports"]
    assert port["containerPort"] == int(image_variable("CAPSNET_PORT"))
    assert image_variable("CAPSNET_HOST") == "0.0.0.0"
    (served,) = one("base", "Service")["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    for rule in one("base", "NetworkPolicy")["spec"]["ingress"]:
        assert [allowed["port"] for allowed in rule["ports"]] == [port["name"]]


def test_every_variable_is_a_setting():
    for folder in ("base", "models-volume"):
        for variable in container(folder).get("env", []):
            assert variable["name"].removeprefix(PREFIX).lower() in Settings.model_fields
            assert variable["name"].startswith(PREFIX)


def test_the_keys_of_the_page_are_those_that_the_pods_read():
    page = (ROOT / "docs" / "serving" / "kubernetes.md").read_text()
    (name, literals) = re.search(r"create secret generic (\S+)(.+)", page).groups()
    keys = set(re.findall(r"--from-literal=([\w-]+)=", literals))
    taken = [variable["valueFrom"]["secretKeyRef"] for variable in container()["env"]]
    assert {(one["name"], one["key"]) for one in taken} == {(name, key) for key in keys}
    assert all(one["optional"] for one in taken)


def with_component(component: str, folder: str, kind: str) -> Manifest:
    """A resource of a folder, with what the component changes in it."""
    found = one(folder, kind)
    (patch,) = [
        patch
        for patch in read(f"{component}/kustomization.yaml")["patches"]
        if is_target(found, patch["target"])
    ]
    apply_patch(found, read(f"{component}/{patch['path']}"))
    return found


def with_key_files(folder: str) -> Manifest:
    """What runs the pods of a folder, with the component."""
    return with_component(KEY_FILES, folder, "InferenceService" if folder == "kserve" else "Deployment")


def pod_with_key_files(folder: str = "base") -> Manifest:
    spec = with_key_files(folder)["spec"]
    return spec["predictor"] if folder == "kserve" else spec["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_base_with_files_of_keys_is_valid(version):
    assert kubernetes_validate.validate(with_key_files("base"), version, strict=True) == version


@pytest.mark.parametrize("folder", ["models-volume", "kserve"])
def test_files_of_keys_are_the_same_in_every_folder(folder):
    def added(spec: Manifest) -> list[Manifest]:
        (served,) = spec["containers"]
        return [each for each in (*spec["volumes"], *served["volumeMounts"]) if each["name"] == KEY_FILES] + [
            each for each in served["env"] if each["name"].endswith("_FILE")
        ]

    assert added(pod_with_key_files(folder)) == added(pod_with_key_files())
    assert len(added(pod_with_key_files())) == 4


def test_the_files_of_keys_are_those_of_the_secret_that_the_page_makes():
    page = (ROOT / "docs" / "serving" / "kubernetes.md").read_text()
    assert "`components: [../docker/kubernetes/key-files]`" in page
    spec = pod_with_key_files()
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "key-files"]
    made = re.findall(r"create secret generic (\S+-files)(.+)", page)
    assert {name for name, _ in made} == {volume["secret"]["secretName"]}
    (served,) = spec["containers"]
    (mount,) = [mount for mount in served["volumeMounts"] if mount["name"] == "key-files"]
    files = {one["name"]: one["value"] for one in served["env"] if one["name"].endswith("_FILE")}
    assert files.keys() == {"CAPSNET_API_KEYS_FILE", "CAPSNET_ADMIN_KEY_FILE"}
    for _, options in made:
        given = re.findall(r"--from-file=([\w-]+)=", options)
        assert set(files.values()) == {f"{mount['mountPath']}/{name}" for name in given}


def test_the_user_of_the_image_can_read_the_files_of_keys_and_nobody_else():
    spec = pod_with_key_files()
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "key-files"]
    assert volume["secret"]["defaultMode"] == 0o440
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]


def test_a_pod_reads_keys_again_because_its_first_process_is_the_service():
    page = (ROOT / "docs" / "serving" / "kubernetes.md").read_text()
    assert "sh -c 'kill -HUP 1'" in page, "slim images have no program of that name"
    assert 'CMD ["capsnet-serve"]' in DOCKERFILE
    assert "ENTRYPOINT" not in DOCKERFILE
    assert "command" not in container()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a service that asks for keys and whose probes have been answered."""
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    with live_service(settings_for(root, api_keys="a-key")) as client:
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert client.get(container()[kind]["httpGet"]["path"]).status_code == 200
        template = one("base", "Deployment")["spec"]["template"]
        return client.get(template["metadata"]["annotations"]["prometheus.io/path"]).raise_for_status().text


def test_probes_ask_routes_that_need_no_key_on_the_port_of_the_service(scraped):
    (port,) = container()["ports"]
    probed = [container()[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["port"] for probe in probed} == {port["name"]}
    assert [probe["path"] for probe in probed] == ["/healthz", "/healthz", "/readyz"]
    for path in ("/healthz", "/readyz"):
        assert f'route="{path}",status="200"' in scraped


def test_prometheus_is_told_the_port_of_the_service():
    annotations = one("base", "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(container()["ports"][0]["containerPort"])
    assert annotations["prometheus.io/scrape"] == "true"


def test_the_drain_fits_the_time_that_a_pod_has_to_end():
    set_here = {variable["name"] for variable in container()["env"]}
    assert "CAPSNET_DEADLINE_MS" not in set_here  # else its value is what must fit
    drain_s = LINGER_S + Settings.model_fields["deadline_ms"].default / 1000
    pause_s = container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod()["terminationGracePeriodSeconds"] >= pause_s + drain_s + 10


def test_a_container_is_contained_as_the_image_expects(tmp_path):
    (user,) = re.findall(r"useradd --uid (\d+)", DOCKERFILE)
    everywhere, here = pod()["securityContext"], container()["securityContext"]
    assert everywhere["runAsNonRoot"] is True
    assert {everywhere[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
    assert everywhere["seccompProfile"] == {"type": "RuntimeDefault"}
    assert here["readOnlyRootFilesystem"] is True
    assert here["allowPrivilegeEscalation"] is False
    assert here["capabilities"] == {"drop": ["ALL"]}
    assert pod()["automountServiceAccountToken"] is False


def test_what_the_service_writes_is_a_volume():
    (cache,) = [volume for volume in pod()["volumes"] if volume["name"] == "cache"]
    mounts = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    assert mounts[image_variable("CAPSNET_CACHE")]["name"] == "cache"
    assert "/tmp" in mounts
    assert quantity(cache["emptyDir"]["sizeLimit"]) > 4 * 160 * 2**20  # graphs of a few versions
    limit = quantity(container()["resources"]["limits"]["ephemeral-storage"])
    assert sum(quantity(volume["emptyDir"]["sizeLimit"]) for volume in pod()["volumes"]) < limit


def test_the_volume_of_bundles_is_a_folder_that_the_service_looks_into():
    added = [mount for mount in container("models-volume")["volumeMounts"] if mount["name"] == "models"]
    assert [mount["mountPath"] for mount in added] == [image_variable("CAPSNET_MODELS").split(":")[1]]
    assert added[0]["readOnly"] is True


def test_cores_are_whole_so_that_there_is_a_thread_for_each(tmp_path):
    limits, requests = (container()["resources"][name] for name in ("limits", "requests"))
    assert limits["cpu"] == requests["cpu"]
    (tmp_path / "cpu.max").write_text(f"{int(limits['cpu']) * 100_000} 100000")
    assert usable_cpus(tmp_path / "cpu.max") <= int(limits["cpu"])


def test_memory_fits_what_was_measured():
    page = (ROOT / "docs" / "serving" / "operations.md").read_text()
    meanwhile = [int(number) for number in re.findall(r"(?:\(peak|, and) (\d+)\b", page)]
    afterwards = [int(number) for number in re.findall(r"^\| .* \| (\d+)\b.* \| \d+ \|$", page, re.MULTILINE)]
    assert len(meanwhile) == 3
    assert len(afterwards) > 3
    resources = container()["resources"]
    assert quantity(resources["limits"]["memory"]) > max(meanwhile) * 2**20
    assert quantity(resources["requests"]["memory"]) > max(afterwards) * 2**20
    assert COMPOSE["services"]["service"]["mem_limit"].endswith(":-2g}")
    assert quantity(resources["limits"]["memory"]) == 2 * 2**30


# GPUs


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["Deployment", "HorizontalPodAutoscaler"])
@pytest.mark.parametrize("folder", ["base", "models-volume"])
def test_what_is_made_for_gpus_is_valid(folder, kind, version):
    assert kubernetes_validate.validate(with_component(GPU, folder, kind), version, strict=True) == version


def test_a_pod_with_a_gpu_has_the_image_memory_and_time_that_compose_gives():
    (served,) = with_component(GPU, "base", "Deployment")["spec"]["template"]["spec"]["containers"]
    composed = COMPOSE["services"]["service-gpu"]
    assert served["image"] == container()["image"].replace("-service:", "-service-gpu:")
    assert served["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert composed["mem_limit"].endswith(":-8g}")
    assert quantity(served["resources"]["limits"]["memory"]) == 8 * 2**30
    assert composed["healthcheck"]["start_period"] == "10m"
    assert served["startupProbe"]["failureThreshold"] * served["startupProbe"]["periodSeconds"] == 600


def test_pods_with_gpus_are_added_when_more_than_their_largest_batch_waits():
    (metric,) = with_component(GPU, "base", "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert int(metric["pods"]["target"]["averageValue"]) == LARGEST_BATCH["cuda"]
    assert LARGEST_BATCH["cuda"] <= Settings.model_fields["queue_images"].default


# Scaling


def test_the_metric_to_scale_on_is_told_by_the_service_and_made_by_the_rule(scraped):
    (rule,) = read("prometheus-adapter.yaml")["rules"]["custom"]
    (metric,) = one("base", "HorizontalPodAutoscaler")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert f"\n{name}{{" in scraped
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert re.fullmatch(rule["name"]["matches"], name)
    assert rule["name"]["as"] == name
    assert rule["resources"]["overrides"] == {
        "namespace": {"resource": "namespace"},
        "pod": {"resource": "pod"},
    }
    filled = {"Series": name, "LabelMatchers": 'namespace="n",pod="p"', "GroupBy": "pod"}
    query = re.sub(r"<<\.(\w+)>>", lambda found: filled[found[1]], rule["metricsQuery"])
    assert query == f'sum by (pod) (avg_over_time({name}{{namespace="n",pod="p"}}[1m]))'


def test_the_page_has_prometheus_ask_several_times_in_the_minute_of_the_rule():
    page = (ROOT / "docs" / "serving" / "kubernetes.md").read_text()
    (interval_s,) = re.findall(r"--set server\.global\.scrape_interval=(\d+)s", page)
    assert int(interval_s) <= 30


def test_the_autoscaler_scales_the_deployment_and_never_to_one_pod():
    scaler = one("base", "HorizontalPodAutoscaler")["spec"]
    deployment = one("base", "Deployment")
    assert scaler["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    assert "replicas" not in deployment["spec"]  # an apply would undo what the autoscaler has done
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]  # one may be taken down: pdb.yaml


# KServe. No package of reasonable size has its schema, which is that of a pod with fields of its own. So the
# pod is checked by Kubernetes' schema, and the fields by this list, from those of kserve 0.21.
KSERVE = {"minReplicas": int, "maxReplicas": int, "annotations": dict, "labels": dict}


def predictor() -> Manifest:
    return one("kserve", "InferenceService")["spec"]["predictor"]


def test_the_inference_service_is_a_pod_with_fields_of_kserve():
    service = one("kserve", "InferenceService")
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    assert service["spec"].keys() == {"predictor"}
    assert re.fullmatch(r"[a-z][a-z0-9-]*", service["metadata"]["name"])
    assert set(service["metadata"]) == {"name", "annotations"}
    annotations = {"deploymentMode": "Standard", "autoscalerClass": "external"}
    assert service["metadata"]["annotations"] == {
        f"serving.kserve.io/{name}": value for name, value in annotations.items()
    }
    for name in predictor().keys() & KSERVE.keys():
        assert isinstance(predictor()[name], KSERVE[name])
    spec = {name: value for name, value in predictor().items() if name not in KSERVE}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}, "spec": spec}
    for version in VERSIONS:
        kubernetes_validate.validate(made, version, strict=True)


def test_kserve_runs_the_pods_of_the_base():
    spec = {name: value for name, value in predictor().items() if name not in KSERVE}
    (own,) = spec["containers"]
    assert own["name"] == "kserve-container"
    expected = {name: value for name, value in pod().items() if name != "topologySpreadConstraints"}
    assert {**spec, "containers": [{**own, "name": container()["name"]}]} == expected
    template = one("base", "Deployment")["spec"]["template"]
    assert predictor()["annotations"] == template["metadata"]["annotations"]


def test_kserve_scales_as_the_base_does():
    base, own = (copy.deepcopy(one(folder, "HorizontalPodAutoscaler")) for folder in ("base", "kserve"))
    target = own["spec"].pop("scaleTargetRef")
    made = f"{one('kserve', 'InferenceService')['metadata']['name']}-predictor"  # the Deployment of KServe
    assert target == {**base["spec"].pop("scaleTargetRef"), "name": made}
    assert own == base
    assert predictor()["minReplicas"] == own["spec"]["minReplicas"]


# The page


def test_the_kustomization_of_the_page_takes_the_base_and_renames_its_image():
    page = ROOT / "docs" / "serving" / "kubernetes.md"
    (shown,) = [yaml.safe_load(block.text) for block in blocks(page) if block.language == "yaml"]
    (base,) = shown["resources"]
    assert (ROOT / "deploy" / base).resolve() == KUBERNETES / "base"
    (image,) = shown["images"]
    name, _, tag = container()["image"].partition(":")
    assert (image["name"], image["newTag"]) == (name, tag)
    commands = "".join(block.text for block in blocks(page) if block.language == "sh")
    assert f"docker push {image['newName']}:{tag}" in commands


def test_every_folder_that_is_applied_is_there():
    page = (ROOT / "docs" / "serving" / "kubernetes.md").read_text()
    assert f"Kubernetes {VERSIONS[0]} or later" in page
    applied = set(re.findall(r"\.\./(docker/kubernetes/[\w-]+)", page))
    assert len(applied) >= 3
    assert all((ROOT / Path(folder) / "kustomization.yaml").is_file() for folder in applied)
