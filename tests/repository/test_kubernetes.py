"""The manifests say what Kubernetes and its operators know, and the image has what the lock says. None is run here."""

import re
import shutil
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
    "results.yaml": [kubernetes.IoK8sApiCoreV1Pod],
    "parameters.yaml": [kubernetes.IoK8sApiCoreV1ConfigMap, kubernetes.IoK8sApiCoreV1PersistentVolumeClaim],
}
# Fields of an MPIJob as the operator's documentation and its resource definition (v2beta1) have them.
MPI_SPEC = {
    *("slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath"),
    *("launcherCreationPolicy", "mpiImplementation"),
}
MPI_POLICY = {
    *("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy"),
    *("suspend", "managedBy"),
}


def manifests(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def unknown_to(model: Any, given: Manifest) -> bool:
    """Whether the type misses something that is given: it drops what it does not know."""
    known: Manifest = model.from_dict(given).to_dict()
    return known != given


@pytest.mark.parametrize("name", TYPES)
def test_a_manifest_has_fields_that_kubernetes_knows(name: str) -> None:
    for model, given in zip(TYPES[name], manifests(name), strict=True):
        assert not unknown_to(model, given)
        assert unknown_to(model, given | {"misspelt": 1})


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
    (variable,) = job["spec"]["trainer"]["env"]
    assert variable["name"] == secret.VARIABLE
    source = variable["valueFrom"]["secretKeyRef"]
    made = f"kubectl create secret generic {source['name']} --from-file={source['key']}=/dev/stdin"
    assert made in (FOLDER / "trainjob.yaml").read_text()


def test_parameters_and_volumes_fit_the_notebooks_the_jobs_and_the_image(tmp_path: Path) -> None:
    """Put where a pod mounts them, the parameters are a preset like others."""
    shutil.copytree(FOLDER.parent, tmp_path / "experiments", ignore=shutil.ignore_patterns("results"))
    parameters, volume = manifests("parameters.yaml")
    (tmp_path / "experiments" / "presets" / "kubernetes.yaml").write_text(parameters["data"]["kubernetes.yaml"])
    runs = planned(sorted((tmp_path / "experiments").glob("*.ipynb")), "kubernetes", {}, "x")
    (train,), (mpi,) = manifests("trainjob.yaml"), manifests("mpijob.yaml")
    trainer, workers = train["spec"]["trainer"], mpi["spec"]["mpiReplicaSpecs"]["Worker"]
    ranks = {trainer["numNodes"] * trainer["numProcPerNode"], workers["replicas"] * mpi["spec"]["slotsPerWorker"]}
    assert {run.parameters["ranks"] for run in runs} == ranks
    (folder,) = re.findall(r"^WORKDIR (\S+)$", IMAGE, flags=re.MULTILINE)
    mounted = {f"{folder}/experiments/presets/kubernetes.yaml", f"{folder}/experiments/results", "/dev/shm"}
    for text in ((FOLDER / name).read_text() for name in ("trainjob.yaml", "mpijob.yaml")):
        assert re.findall(r"configMap:\s+name: (\S+)", text) == [parameters["metadata"]["name"]]
        assert re.findall(r"claimName: (\S+)", text) == [volume["metadata"]["name"]]
        assert set(re.findall(r"mountPath: (\S+)", text)) == mounted
        assert all((ROOT / notebook).exists() for notebook in re.findall(r"experiments/\S+\.ipynb", text))


def test_a_pod_has_what_nccl_needs() -> None:
    (train,), (mpi,) = manifests("trainjob.yaml"), manifests("mpijob.yaml")
    (job,) = train["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    node, trainer = job["template"]["spec"]["template"]["spec"], train["spec"]["trainer"]
    worker = mpi["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = worker["containers"]
    for pod, limits, ranks in (
        (node, trainer["resourcesPerNode"]["limits"], trainer["numProcPerNode"]),
        (worker, container["resources"]["limits"], mpi["spec"]["slotsPerWorker"]),
    ):
        assert limits["nvidia.com/gpu"] == str(ranks), "a GPU for each rank"
        assert any(name.startswith("rdma/") for name in limits)
        assert pod["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        (volume,) = [each["name"] for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == "/dev/shm"]
        assert [each["emptyDir"]["medium"] for each in pod["volumes"] if each["name"] == volume] == ["Memory"]


def test_the_image_is_in_step_with_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (python,) = re.findall(r"^ARG BASE=python:(\d+\.\d+)-", IMAGE, flags=re.MULTILINE)
    assert f"python={python}" in environment
    assert re.findall(r"torch.__version__.split\('\+'\)\[0\] == '([\d.]+)'", IMAGE) == [lock()["torch"]]
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", IMAGE, flags=re.MULTILINE) for name in line.split()]
    assert [name for name in copied if not (ROOT / name).exists()] == []
