"""The manifests say what Kubernetes and its operators know, and the image has what the lock says.

None is run here.
"""

import copy
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import kubeflow_trainer_api.models as kubernetes
import pytest
import yaml
from test_packaging import lock

from collectives.launch import secret
from collectives_book.execute import planned
from places import ROOT

FOLDER = ROOT / "experiments" / "kubernetes"
IMAGE = (FOLDER / "Containerfile").read_text()
Manifest = dict[str, Any]
TYPES = {
    "trainjob.yaml": [kubernetes.TrainerV1alpha1TrainJob],
    "trainjob-efa.yaml": [kubernetes.TrainerV1alpha1TrainJob],
    "results.yaml": [kubernetes.IoK8sApiCoreV1Pod],
    "parameters.yaml": [
        kubernetes.IoK8sApiCoreV1ConfigMap,
        kubernetes.IoK8sApiCoreV1PersistentVolumeClaim,
    ],
}
# Fields of an MPIJob as the operator's documentation and its resource definition (v2beta1) have
# them.
MPI_SPEC = {
    *("slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath"),
    *("launcherCreationPolicy", "mpiImplementation"),
}
MPI_POLICY = {
    *(
        "cleanPodPolicy",
        "ttlSecondsAfterFinished",
        "activeDeadlineSeconds",
        "backoffLimit",
        "schedulingPolicy",
    ),
    *("suspend", "managedBy"),
}


# A label of the pods that has the job's name: JobSet's, and the MPI operator's.
JOB_LABEL = {
    "trainjob.yaml": "jobset.sigs.k8s.io/jobset-name",
    "mpijob.yaml": "training.kubeflow.org/job-name",
}
JOBS = sorted(JOB_LABEL)
FREE = {"data", "limits", "requests"}  # their keys are names that no type lists


def manifests(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def replicas(job: Manifest) -> list[Manifest]:
    """Return the specifications of the job's pods."""
    if job["kind"] == "MPIJob":
        return [each["template"]["spec"] for each in job["spec"]["mpiReplicaSpecs"].values()]
    (patch,) = job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    return [node["template"]["spec"]["template"]["spec"]]


def started(job: Manifest) -> Manifest:
    """Return the container of the notebook's pod: its command, arguments and environment."""
    return (
        job["spec"]["trainer"] if job["kind"] == "TrainJob" else replicas(job)[0]["containers"][0]
    )


def unknown_to(model: Any, given: Manifest) -> bool:
    """Return True if the type lacks something that is given: it drops such fields."""
    known: Manifest = model.from_dict(given).to_dict()
    return known != given


@pytest.mark.parametrize("name", TYPES)
def test_a_manifest_has_fields_that_kubernetes_knows(name: str) -> None:
    for model, given in zip(TYPES[name], manifests(name), strict=True):
        assert not unknown_to(model, given)
        for place in typed_mappings(given):
            place["misspelt"] = "1"
            assert unknown_to(model, given), "a key that no type has is found wherever it is"
            del place["misspelt"]


def typed_mappings(given: Any) -> list[Manifest]:
    """Return a manifest and every mapping in it whose keys a type lists."""
    if isinstance(given, list):
        return [mapping for each in given for mapping in typed_mappings(each)]
    if not isinstance(given, dict):
        return []
    return [given, *typed_mappings([value for key, value in given.items() if key not in FREE])]


def test_the_mpijob_has_documented_fields_only() -> None:
    (job,) = manifests("mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert set(job["spec"]) <= MPI_SPEC
    assert set(job["spec"]["runPolicy"]) <= MPI_POLICY
    assert set(job["spec"]["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        assert set(replica) <= {"replicas", "template", "restartPolicy"}
        assert not unknown_to(kubernetes.IoK8sApiCoreV1PodTemplateSpec, replica["template"])


def test_the_trainjob_s_pods_share_a_secret_that_its_first_lines_say_how_to_make() -> None:
    """torchrun's processes start ranks only for who has it, and it is not in the manifest."""
    (job,) = manifests("trainjob.yaml")
    (variable,) = [
        each for each in job["spec"]["trainer"]["env"] if each["name"] == secret.VARIABLE
    ]
    source = variable["valueFrom"]["secretKeyRef"]
    made = f"kubectl create secret generic {source['name']} --from-file={source['key']}=/dev/stdin"
    assert made in (FOLDER / "trainjob.yaml").read_text()


def test_parameters_and_volumes_fit_the_notebooks_the_jobs_and_the_image(tmp_path: Path) -> None:
    """Put where a pod mounts them, the parameters are a preset like others."""
    shutil.copytree(
        FOLDER.parent, tmp_path / "experiments", ignore=shutil.ignore_patterns("results")
    )
    parameters, volume = manifests("parameters.yaml")
    (tmp_path / "experiments" / "presets" / "kubernetes.yaml").write_text(
        parameters["data"]["kubernetes.yaml"]
    )
    runs = planned(sorted((tmp_path / "experiments").glob("*.ipynb")), "kubernetes", {}, "x")
    (train,), (mpi,) = manifests("trainjob.yaml"), manifests("mpijob.yaml")
    trainer, workers = train["spec"]["trainer"], mpi["spec"]["mpiReplicaSpecs"]["Worker"]
    ranks = {
        trainer["numNodes"] * trainer["numProcPerNode"],
        workers["replicas"] * mpi["spec"]["slotsPerWorker"],
    }
    assert {run.parameters["ranks"] for run in runs} == ranks
    (folder,) = re.findall(r"^WORKDIR (\S+)$", IMAGE, flags=re.MULTILINE)
    mounted = {
        f"{folder}/experiments/presets/kubernetes.yaml",
        f"{folder}/experiments/results",
        "/dev/shm",
    }
    for text in ((FOLDER / name).read_text() for name in ("trainjob.yaml", "mpijob.yaml")):
        assert re.findall(r"configMap:\s+name: (\S+)", text) == [parameters["metadata"]["name"]]
        assert re.findall(r"claimName: (\S+)", text) == [volume["metadata"]["name"]]
        assert set(re.findall(r"mountPath: (\S+)", text)) == mounted
        assert all(
            (ROOT / notebook).exists() for notebook in re.findall(r"experiments/\S+\.ipynb", text)
        )


def test_a_pod_has_what_nccl_needs() -> None:
    (train,), (mpi,) = manifests("trainjob.yaml"), manifests("mpijob.yaml")
    (node,), trainer, (_, worker) = replicas(train), train["spec"]["trainer"], replicas(mpi)
    (container,) = worker["containers"]
    for pod, limits, ranks in (
        (node, trainer["resourcesPerNode"]["limits"], trainer["numProcPerNode"]),
        (worker, container["resources"]["limits"], mpi["spec"]["slotsPerWorker"]),
    ):
        assert limits["nvidia.com/gpu"] == str(ranks), "a GPU for each rank"
        assert any(name.startswith("rdma/") for name in limits)
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod[
            "tolerations"
        ]
        (volume,) = [
            each["name"]
            for each in pod["containers"][0]["volumeMounts"]
            if each["mountPath"] == "/dev/shm"
        ]
        assert [
            each["emptyDir"]["medium"] for each in pod["volumes"] if each["name"] == volume
        ] == ["Memory"]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_can_be_created_again_and_its_results_have_a_folder_of_its_name(name: str) -> None:
    (job,) = manifests(name)
    assert "name" not in job["metadata"]
    assert re.fullmatch("[a-z]([-a-z0-9]*)-", job["metadata"]["generateName"])
    (variable,) = [each for each in started(job)["env"] if each["name"] == "JOB"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{JOB_LABEL[name]}']"
    assert started(job)["args"][-2:] == ["--output", "$(JOB)"]
    page = (ROOT / "chapters" / "kubernetes.md").read_text()
    assert f"{JOB_LABEL[name]}=$job" in page, "its logs are found by the label that its pods have"


@pytest.mark.parametrize("name", JOBS)
def test_kueue_s_label_is_one_line_to_uncomment(name: str) -> None:
    queued = yaml.safe_load((FOLDER / name).read_text().replace("  # labels:", "  labels:"))
    assert queued["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "QUEUE"}
    if queued["kind"] == "TrainJob":
        assert not unknown_to(kubernetes.TrainerV1alpha1TrainJob, queued)


@pytest.mark.parametrize("name", [*JOBS, "trainjob-efa.yaml", "results.yaml"])
def test_pods_run_the_image_s_user_with_no_privileges(name: str) -> None:
    """By Kubernetes' restricted standard, so that a namespace that enforces it takes them."""
    (job,) = manifests(name)
    (user,) = set(re.findall(r"^USER (\d+):\1$", IMAGE, flags=re.MULTILINE))
    assert f"useradd --uid {user} " in IMAGE
    for pod in [job["spec"]] if job["kind"] == "Pod" else replicas(job):
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert (context["runAsUser"], context["fsGroup"]) == (int(user), int(user))
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            narrow = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert container["securityContext"] == narrow


def test_ssh_of_an_mpijob_needs_no_root() -> None:
    (job,) = manifests("mpijob.yaml")
    home = "/home/collectives"
    assert job["spec"]["sshAuthMountPath"] == f"{home}/.ssh"
    assert replicas(job)[1]["containers"][0]["command"][-1] == f"{home}/.sshd_config"
    server, client = re.findall(r'printf "(.*Port \d+.*)"', IMAGE)
    assert re.findall(r"Port (\d+)", server) == re.findall(r"Port (\d+)", client)
    assert int(re.findall(r"Port (\d+)", server)[0]) >= 1024
    assert f"HostKey {home}/.ssh/id_rsa" in server


def test_the_variant_for_efa_is_the_job_but_for_its_devices_and_variables() -> None:
    (job,), (efa,) = manifests("trainjob.yaml"), manifests("trainjob-efa.yaml")
    trainer = copy.deepcopy(efa["spec"]["trainer"])
    devices = trainer["resourcesPerNode"]["limits"]
    assert int(devices.pop("vpc.amazonaws.com/efa")) == 32
    assert devices.pop("hugepages-2Mi") == "5120Mi"
    devices["rdma/rdma_shared_device_a"] = "1"
    assert {each["name"]: each["value"] for each in trainer["env"][2:]}["FI_PROVIDER"] == "efa"
    trainer["env"] = trainer["env"][:2]
    assert job == efa | {"spec": efa["spec"] | {"trainer": trainer}}


def test_images_have_the_tag_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    texts = [path.read_text() for path in FOLDER.iterdir()]
    tags = {tag for text in texts for tag in re.findall(r"REGISTRY/collectives(\S*)", text)}
    assert tags == {f":{version}"}


def test_the_image_is_in_step_with_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (python,) = re.findall(r"^ARG BASE=python:(\d+\.\d+)-", IMAGE, flags=re.MULTILINE)
    assert f"python={python}" in environment
    assert re.findall(r"torch.__version__.split\('\+'\)\[0\] == '([\d.]+)'", IMAGE) == [
        lock()["torch"]
    ]
    copied = [
        name
        for line in re.findall(r"^COPY (?:--chown=\S+ )?(.*) \S+$", IMAGE, flags=re.MULTILINE)
        for name in line.split()
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
