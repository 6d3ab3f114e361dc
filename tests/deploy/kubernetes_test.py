"""deploy/k8s and deploy/helm, rendered and read: against Kubernetes' schemas, the daemons, and each other.

kubectl and helm are those that scripts/bootstrap puts into the tests' environment.
"""

import copy
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy_helpers import BIN, DEPLOY, ROOT, check_config, issue_certificates, run, seconds

K8S = DEPLOY / "k8s"
CHART = DEPLOY / "helm"
VERSION = re.search(r"project\(bandoneon VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
KUBERNETES = ("1.29", "1.35")
OVERLAYS = ("dev", "prod-tcp", "prod-rdma", "elastic")
# By what the chart is to have besides, the values that say so and the components of kustomize that do.
VARIANTS = {
    "monitoring": (["monitoring.enabled=true"], ["monitoring"]),
    "no journal": (["scheduler.journal.enabled=false"], ["no-journal"]),
    "cert-manager": (["tls.certManager=true"], ["cert-manager"]),
    "gpu": (["workers.gpus.count=1"], ["gpu"]),
    "daemon": (["workers.daemon.enabled=true"], ["worker-daemon"]),
    "gpu and daemon": (["workers.gpus.count=1", "workers.daemon.enabled=true"], ["gpu", "worker-daemon"]),
    "rdma": (["rdma.enabled=true"], ["rdma"]),
    "rdma and daemon": (["rdma.enabled=true", "workers.daemon.enabled=true"], ["worker-daemon", "rdma", "rdma-daemon"]),
    "rdma and ipc-lock": (["rdma.enabled=true", "rdma.ipcLock=true"], ["rdma", "ipc-lock"]),
    "rdma, ipc-lock and daemon": (["rdma.enabled=true", "rdma.ipcLock=true", "workers.daemon.enabled=true"],
                                  ["worker-daemon", "rdma", "rdma-daemon", "ipc-lock", "ipc-lock-daemon"]),
}
# What the chart alone has values for.
CHART_ALONE = {
    "everything": ["tls.certManager=true", "monitoring.enabled=true", "workers.gpus.count=8", "workers.daemon.enabled=true", "rdma.enabled=true",
                   "rdma.resource=vpc.amazonaws.com/efa", "rdma.count=4", "rdma.provider=efa", "rdma.domain=rdmap0s6-rdm", "rdma.ipcLock=true", "scheduler.journal.size=20Gi",
                   "scheduler.journal.storageClass=fast", "scheduler.journal.timeout=1h", "job.workers=8", "job.minWorkers=6"],
    "a plain Job": ["tls.certManager=true", "job.workers=4", "job.minWorkers=1", "job.maxWorkers=8", "workers.kind=Job", "workers.command={python,elastic.py}"],
    "a plain Job and daemons": ["tls.certManager=true", "job.workers=4", "job.minWorkers=1", "job.maxWorkers=8", "workers.kind=Job", "workers.daemon.enabled=true",
                                "workers.daemon.program={elastic.py}"],
}
JOBS = (*(f"overlays/{name}" for name in OVERLAYS), "helm", *(f"helm with {name}" for name in (*VARIANTS, *CHART_ALONE)))
RENDERED = (*JOBS, "trainer")
PART = {"app.kubernetes.io/part-of": "bandoneon"}
# By kind, where a pod's template is.
TEMPLATES = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "JobSet": ("spec", "replicatedJobs", 0, "template", "spec", "template"),
    "ClusterTrainingRuntime": ("spec", "template", "spec", "replicatedJobs", 0, "template", "spec", "template"),
}
# The fields of other projects' kinds that are used here, and no others: a misspelt one is an error.
STRICT = {
    "JobSet": {"failurePolicy": {"maxRestarts": int}, "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": dict}}]},
    "TrainJob": {"runtimeRef": {"name": str}, "trainer": {"numNodes": int, "numProcPerNode": int, "command": [str]}},
    "ClusterTrainingRuntime": {
        "mlPolicy": {"numNodes": int, "torch": {}},
        "template": {"spec": {"failurePolicy": {"maxRestarts": int}, "replicatedJobs": [{"name": str, "template": {"metadata": dict, "spec": dict}}]}}},
    "PodMonitor": {"selector": {"matchLabels": dict}, "podMetricsEndpoints": [{"port": str, "interval": str}]},
    "PrometheusRule": {"groups": [{"name": str, "rules": [{"record": str, "alert": str, "expr": str, "for": str,
                                                           "labels": dict, "annotations": dict}]}]},
    "Issuer": {"selfSigned": dict, "ca": {"secretName": str}},
    "Certificate": {"isCA": bool, "commonName": str, "secretName": str, "uris": [str], "usages": [str], "duration": str,
                    "renewBefore": str, "privateKey": {"algorithm": str, "size": int, "encoding": str},
                    "issuerRef": {"name": str, "kind": str}},
}


def program(name):
    """The one beside the Python that runs this, or on the PATH."""
    beside = pathlib.Path(sys.executable).parent / name
    return beside if beside.exists() else shutil.which(name) or pytest.skip(f"no {name}: scripts/bootstrap installs it")


def kubectl():
    return program("kubectl")


def helm():
    return program("helm")


def chart_with(*values):
    """The command that renders the chart with "name=value"s."""
    return [helm(), "template", "release", CHART, *(word for value in values for word in ("--set", value))]


def write_overlay(folder, overlay, *components):
    """A kustomization in `folder`: an overlay with components."""
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({
        "resources": [os.path.relpath(K8S / "overlays" / overlay, folder)],
        "components": [os.path.relpath(K8S / "components" / name, folder) for name in components]}), encoding="utf-8")


def with_components(folder, overlay, *components):
    """The objects of an overlay with components."""
    write_overlay(folder, overlay, *components)
    return objects_of([kubectl(), "kustomize", folder])


def objects_of(command):
    done = run(*command)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@pytest.fixture(scope="module")
def rendered():
    known = {}

    def render(name):
        if name not in known:
            variant = name.partition(" with ")[2]
            values = CHART_ALONE.get(variant) or VARIANTS.get(variant, ([], []))[0]
            known[name] = objects_of(chart_with(*values) if name.startswith("helm") else [kubectl(), "kustomize", K8S / name])
        return copy.deepcopy(known[name])
    return render


@pytest.fixture(params=RENDERED)
def objects(request, rendered):
    return rendered(request.param)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """{role: its folder}, with the names of files that secrets have."""
    folders = issue_certificates(tmp_path_factory.mktemp("certs"), "gpt-7")
    for folder in folders.values():
        for ours, theirs in (("ca.pem", "ca.crt"), ("cert.pem", "tls.crt"), ("key.pem", "tls.key")):
            (folder / ours).rename(folder / theirs)
    return folders


def template_of(found):
    place = found
    for step in TEMPLATES[found["kind"]]:
        place = place[step]
    return place


def pods(objects):
    """[(name, template)]"""
    return [(found["metadata"]["name"], template_of(found)) for found in objects if found["kind"] in TEMPLATES]


def job_of(found):
    """The spec of the Job of workers that a Job, JobSet or runtime makes."""
    place = found
    for step in TEMPLATES[found["kind"]][:-1]:
        place = place[step]
    return place


def workers_of(objects):
    """The one object that makes a job's workers."""
    (found,) = [found for found in objects if found["kind"] in ("Job", "JobSet", "ClusterTrainingRuntime")]
    return found


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def role_of(template):
    return template["metadata"]["labels"]["app.kubernetes.io/component"]


def only(objects, kind, name=None):
    (found,) = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    return found


def environment(objects, container, certificates=None, role=None):
    """{name: value} as the kubelet would fill it in, for the first pod."""
    variables = {}
    for source in container.get("envFrom", []):
        variables |= only(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for entry in container.get("env", []):
        value = entry.get("value")
        if value is None:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            value = {"metadata.name": "pod-0", "metadata.labels['apps.kubernetes.io/pod-index']": "0",
                     "metadata.annotations['batch.kubernetes.io/job-completion-index']": "0"}[path]
        variables[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], value)
    if certificates:
        variables = {key: value.replace("/certs", str(certificates[role])) for key, value in variables.items()}
    return variables


def schema(shape):
    """A strict JSON schema of a shape in STRICT."""
    if isinstance(shape, dict):
        return {"type": "object", "additionalProperties": False, "properties": {key: schema(part) for key, part in shape.items()}}
    if isinstance(shape, list):
        return {"type": "array", "items": schema(shape[0])}
    return {"type": {int: "integer", str: "string", bool: "boolean", dict: "object"}[shape]}


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field(objects, version):
    for found in objects:
        if found["kind"] in STRICT:
            jsonschema.validate(found["spec"], schema(STRICT[found["kind"]]))
        else:
            kubernetes_validate.validate(found, version, strict=True)
    for name, template in pods(objects):
        of_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}}
        kubernetes_validate.validate(of_job, version, strict=True)
    kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": job_of(workers_of(objects))}, version, strict=True)


def test_a_misspelt_field_would_be_found(rendered):
    found = only(rendered("overlays/dev"), "StatefulSet")
    found["spec"]["podManagmentPolicy"] = "Parallel"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, KUBERNETES[0], strict=True)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"failurePolicy": {"maxRestart": 3}}, schema(STRICT["JobSet"]))
    job = job_of(only(rendered("overlays/dev"), "JobSet"))
    job["podFailurePolicy"]["rules"][1]["onExitCode"] = job["podFailurePolicy"]["rules"][1].pop("onExitCodes")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": job}, KUBERNETES[0], strict=True)


def locks_memory(template):
    """Whether one of its containers may, against what a restricted, or baseline, namespace allows."""
    return any("add" in container["securityContext"]["capabilities"] for container in containers(template))


def test_pods_are_as_restricted_as_can_be(objects):
    for name, template in pods(objects):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        claims = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
        assert spec["securityContext"] == {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                                           "seccompProfile": {"type": "RuntimeDefault"}} | (
                                               {"fsGroupChangePolicy": "OnRootMismatch"} if claims else {})
        assert all({"secret", "emptyDir"} & volume.keys() or volume in claims for volume in spec["volumes"])
        assert not claims or role_of(template) == "scheduler"
        for container in containers(template):
            expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            if locks_memory(template):
                expected |= {"runAsNonRoot": False, "runAsUser": 0}
                # Of a pod's containers that which speaks RDMA.
                if container is containers(template)[0]:
                    expected["capabilities"]["add"] = ["IPC_LOCK"]
            assert container["securityContext"] == expected
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]} and {"certs", "tmp"} <= mounted


def test_services_add_no_variables(objects):
    """BANDONEON_SERVER_PORT and its like would be refused as unknown settings."""
    for name, template in pods(objects):
        assert template["spec"]["enableServiceLinks"] is False, name


def test_images_are_pinned(objects):
    for _, template in pods(objects):
        for container in containers(template):
            assert container["image"] in (f"bandoneon:{VERSION}", f"bandoneon-torch:{VERSION}")


def test_memory_is_bounded_and_processors_are_not(objects):
    for _, template in pods(objects):
        for container in containers(template):
            resources = container["resources"]
            assert resources["limits"]["memory"] == resources["requests"]["memory"] and "cpu" not in resources["limits"]
            assert resources["requests"]["cpu"]


@pytest.fixture(scope="module")
def speak_rdma():
    """Whether this build's daemons know transport=rdma; if they refuse it, it is for this and nothing else."""
    alone = {"BANDONEON_SCHEDULER": "127.0.0.1:7000", "BANDONEON_TRANSPORT": "rdma"}
    done = run(BIN / "bandoneon-server", "--check-config", env=alone)
    assert done.returncode == 0 or "setting transport is 'rdma': expected" in done.stderr, done.stderr
    return done.returncode == 0


def test_daemons_accept_what_they_are_started_with(objects, certificates, speak_rdma):
    checked = 0
    for _, template in pods(objects):
        for container in containers(template):
            if not container.get("command", [""])[0].startswith("bandoneon-"):
                continue
            variables = environment(objects, container, certificates, role_of(template))
            if not speak_rdma:  # all others are judged
                variables = {name: value for name, value in variables.items()
                             if name != "BANDONEON_TRANSPORT" and not name.startswith("BANDONEON_FABRIC_")}
            settings = check_config(container["command"], variables)
            assert template["spec"]["terminationGracePeriodSeconds"] > seconds(settings["drain-timeout"])
            for listens, named in (("listen", {"scheduler": "control", "server": "data"}.get(role_of(template))),
                                   ("health-listen", "health"), ("metrics-listen", "metrics")):
                if listens in settings and settings[listens] and "ports" in container:
                    port = int(settings[listens].rsplit(":", 1)[1])
                    assert {"name": named, "containerPort": port} in container["ports"]
            checked += 1
    assert checked >= 2 or any(o["kind"] == "TrainJob" for o in objects)


def test_probes_ask_for_what_there_is(objects, certificates):
    for _, template in pods(objects):
        for container in containers(template):
            if not container.get("command", [""])[0].startswith("bandoneon-"):
                continue
            variables = environment(objects, container)
            port = int(variables["BANDONEON_HEALTH_LISTEN"].rsplit(":", 1)[1])
            probes = {kind: container[kind]["grpc"] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in container}
            # Whether it lives must not hang on whether its job has begun.
            assert probes["startupProbe"] == probes["livenessProbe"] == {"port": port, "service": "liveness"}
            assert probes.get("readinessProbe", {"port": port, "service": "readiness"}) == {"port": port, "service": "readiness"}
    services = re.findall(r'SetServingStatus\("(\w+)"', (ROOT / "common/cluster/health.cc").read_text(encoding="utf-8"))
    assert set(services) == {"liveness", "readiness"}


def matches(selector, labels):
    assert not set(selector) - {"matchLabels", "matchExpressions"}
    return (all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
            and all(rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
                    for rule in selector.get("matchExpressions", [])))


def test_selectors_find_their_pods(objects):
    templates = dict(pods(objects))
    for found in objects:
        name = found["metadata"]["name"]
        if found["kind"] in ("Deployment", "StatefulSet"):
            assert matches(found["spec"]["selector"], templates[name]["metadata"]["labels"])
        if found["kind"] == "Service":
            assert matches({"matchLabels": found["spec"]["selector"]}, templates[name]["metadata"]["labels"])
            ports = {port["name"] for container in containers(templates[name]) for port in container["ports"]}
            assert {port["targetPort"] for port in found["spec"]["ports"]} <= ports
        if found["kind"] == "PodDisruptionBudget":
            assert matches(found["spec"]["selector"], templates[name]["metadata"]["labels"])
            assert found["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
            # Without a journal nobody waits for another server in the place of the only one, and none is replaced unasked.
            scheduler = containers(templates["bandoneon-scheduler"])
            has_journal = any(env["name"] == "BANDONEON_JOURNAL" for one in scheduler for env in one["env"])
            assert found["spec"]["maxUnavailable"] == (1 if has_journal else 0)
            assert only(objects, "StatefulSet")["spec"]["updateStrategy"] == {"type": "RollingUpdate" if has_journal else "OnDelete"}
        if found["kind"] == "StatefulSet":
            # An update goes on to the next server when one is ready, which it is in a job.
            assert containers(templates[name])[0]["readinessProbe"]["grpc"]["service"] == "readiness"
            (spread,) = templates[name]["spec"]["topologySpreadConstraints"]
            assert matches(spread["labelSelector"], templates[name]["metadata"]["labels"])
            service = only(objects, "Service", found["spec"]["serviceName"])
            assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    accounts = {found["metadata"]["name"] for found in objects if found["kind"] == "ServiceAccount"}
    assert {template["spec"].get("serviceAccountName") for template in templates.values()} - {None} <= accounts


@pytest.mark.parametrize("name", JOBS)
def test_who_talks_to_whom_is_let_through_and_nobody_else(rendered, name):
    objects = rendered(name)
    policies = [found["spec"] for found in objects if found["kind"] == "NetworkPolicy"]
    labels = {role_of(template): template["metadata"]["labels"] for _, template in pods(objects)}
    assert set(labels) == {"scheduler", "server", "worker"} and all(PART.items() <= found.items() for found in labels.values())

    def allows(direction, of, other, port):
        kind, peer = {"in": ("Ingress", "from"), "out": ("Egress", "to")}[direction]
        mine = [p for p in policies if kind in p["policyTypes"] and matches(p["podSelector"], labels[of])]
        assert mine, f"{of} is in no policy: all of {kind} would be let through"
        return any(any("namespaceSelector" not in side and matches(side["podSelector"], labels[other]) for side in rule[peer])
                   and any(p["port"] == port for p in rule.get("ports", [{"port": port}]))
                   for p in mine for rule in p.get(kind.lower(), []))

    wanted = {("server", "scheduler", 7000), ("worker", "scheduler", 7000), ("worker", "server", 7100)}
    for one in labels:
        for other in labels:
            for port in (7000, 7100, 7080, 7090, 22):
                through = allows("out", one, other, port) and allows("in", other, one, port)
                assert through == ((one, other, port) in wanted or one == other == "worker"), (one, other, port)


@pytest.mark.parametrize("name", JOBS)
def test_prometheus_comes_to_the_metrics_from_its_namespace_and_no_further(rendered, name):
    objects = rendered(name)
    policy = only(objects, "NetworkPolicy", "bandoneon-metrics")["spec"]
    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    assert source == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for _, template in pods(objects):
        assert matches(policy["podSelector"], template["metadata"]["labels"])
    told = environment(objects, containers(template_of(only(objects, "Deployment")))[0])
    assert [port["port"] for port in rule["ports"]] == [int(told["BANDONEON_METRICS_LISTEN"].rsplit(":", 1)[1])]


def check_monitoring(objects, daemons):
    monitor, rule = only(objects, "PodMonitor")["spec"], only(objects, "PrometheusRule")["spec"]
    jsonschema.validate(monitor, schema(STRICT["PodMonitor"]))
    jsonschema.validate(rule, schema(STRICT["PrometheusRule"]))
    assert rule == yaml.safe_load((DEPLOY / "observability" / "rules.yml").read_text(encoding="utf-8"))
    (endpoint,) = monitor["podMetricsEndpoints"]
    scraped = [container["command"][0] for _, template in pods(objects)
               if matches(monitor["selector"], template["metadata"]["labels"])
               for container in containers(template)
               if endpoint["port"] in [port["name"] for port in container.get("ports", [])]]
    assert sorted(scraped) == sorted(f"bandoneon-{role}" for role in daemons)
    board = only(objects, "ConfigMap", "bandoneon-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = board["data"].values()
    assert text.strip() == (DEPLOY / "observability" / "dashboard.json").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("overlay, daemons", [("dev", ["scheduler", "server"]), ("prod-tcp", ["scheduler", "server", "worker"]),
                                              ("prod-rdma", ["scheduler", "server"])])
def test_monitoring_scrapes_every_daemon_and_brings_rules_and_dashboard(tmp_path, overlay, daemons):
    check_monitoring(with_components(tmp_path, overlay, "monitoring"), daemons)


def test_the_charts_monitoring_is_the_components():
    check_monitoring(objects_of(chart_with("monitoring.enabled=true")), ["scheduler", "server"])
    objects = objects_of(chart_with("monitoring.enabled=true", "workers.daemon.enabled=true"))
    check_monitoring(objects, ["scheduler", "server", "worker"])


@pytest.mark.parametrize("name", JOBS)
def test_the_job_is_as_large_as_its_replicas(rendered, name):
    objects = rendered(name)
    scheduler = only(objects, "Deployment")
    told = environment(objects, containers(template_of(scheduler))[0])
    assert scheduler["spec"]["replicas"] == 1 and scheduler["spec"]["strategy"] == {"type": "Recreate"}
    assert only(objects, "StatefulSet")["spec"]["replicas"] == int(told["BANDONEON_SERVERS"])
    found = workers_of(objects)
    assert found["kind"] == "Job" or found["spec"]["replicatedJobs"][0]["replicas"] == 1
    assert job_of(found)["completions"] == job_of(found)["parallelism"] == int(told["BANDONEON_WORKERS"])


@pytest.mark.parametrize("name", JOBS)
def test_a_job_fails_when_more_workers_are_gone_for_good_than_it_can_lose(rendered, certificates, name):
    objects = rendered(name)
    (container,) = containers(template_of(only(objects, "Deployment")))
    settings = check_config(container["command"], environment(objects, container, certificates, "scheduler"))
    workers, fewest = int(settings["workers"]), int(settings["min-workers"])
    assert 0 <= fewest <= workers
    assert fewest == {"overlays/elastic": 1, "helm with a plain Job": 1, "helm with a plain Job and daemons": 1, "helm with everything": 6}.get(name, 0)
    found = workers_of(objects)
    # A plain Job's completions may fall to min-workers, and must not fall below this number.
    assert job_of(found).get("maxFailedIndexes") == (None if found["kind"] == "Job" else workers - fewest if fewest else 0)
    # Settings of the scheduler alone: a change of them must replace no server.
    for other in (only(objects, "StatefulSet"), found):
        for one in containers(template_of(other)):
            assert "BANDONEON_MIN_WORKERS" not in environment(objects, one), other["kind"]


def policy_of(job):
    """(what the Job does with a pod that fails, by the exit status of its containers in order and whether it was evicted)"""
    rules = job["podFailurePolicy"]["rules"]
    names = [container["name"] for container in containers(job["template"])]

    def holds(rule, codes, is_evicted):
        (kind,) = rule.keys() - {"action"}
        if kind == "onPodConditions":
            return is_evicted and {"type": "DisruptionTarget", "status": "True"} in rule[kind]
        exits = [codes[names.index(rule[kind]["containerName"])]]
        return any(code != 0 and (code in rule[kind]["values"]) == (rule[kind]["operator"] == "In") for code in exits)

    def action(code, is_evicted=False):
        codes = [0] * (len(names) - 1) + [code]
        return next((rule["action"] for rule in rules if holds(rule, codes, is_evicted)), "Count")
    return action


def test_one_pod_is_replaced_and_none_of_the_others(objects):
    job = job_of(workers_of(objects))
    # Without these Kubernetes takes neither a limit for each index nor a policy.
    assert job.get("completionMode", "Indexed") == "Indexed" and job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["podReplacementPolicy"] == "Failed"
    assert job["backoffLimitPerIndex"] >= 1 and job["backoffLimit"] == 2**31 - 1
    for rule in job["podFailurePolicy"]["rules"]:
        assert rule["action"] in ("Ignore", "FailIndex")
        if "onExitCodes" in rule:
            values = rule["onExitCodes"]["values"]
            assert rule["onExitCodes"]["operator"] in ("In", "NotIn") and values == sorted(set(values)) and 0 not in values
    action = policy_of(job)
    asks = re.search(r"^START_ME_AGAIN = (\d+)", (ROOT / "python/bandoneon/endings.py").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert action(int(asks)) == "Ignore"
    assert {action(code, is_evicted=True) for code in (1, 75, 137, 143)} == {"Ignore"}
    ends = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGINT", "SIGHUP")
    assert {action(128 + getattr(signal, name)) for name in ends} == {"Count"}
    # A torchrun that is the pod's own ends with 1 for whatever reason.
    has_own_torchrun = "--standalone" in containers(job["template"])[-1].get("command", [])
    assert {action(code) for code in (1, 2, 74, 76, 126, 127, 128, 255)} == {"Count" if has_own_torchrun else "FailIndex"}


def test_workers_have_time_to_leave_and_no_more_than_a_spot_machine_gives(objects):
    """Two steps, and at least the 30 s that Kubernetes gives unasked."""
    assert 30 <= template_of(workers_of(objects))["spec"]["terminationGracePeriodSeconds"] <= 120


@pytest.mark.parametrize("name", JOBS)
def test_a_pod_that_takes_anothers_place_has_its_rank(rendered, name):
    """Of a pod with a daemon it is the daemon's; torchrun gives the processes theirs."""
    template = template_of(workers_of(rendered(name)))
    ranks = [[entry for entry in container["env"] if entry["name"] == "BANDONEON_RANK"] for container in containers(template)]
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    assert ranks[0] == [{"name": "BANDONEON_RANK", "valueFrom": index}] and not any(ranks[1:])


def test_an_elastic_jobs_pods_are_those_of_the_jobset(rendered):
    def plain(name):
        job = job_of(workers_of(rendered(name)))
        job.pop("maxFailedIndexes", None)
        (container,) = containers(job["template"])
        assert (ROOT / "examples" / container.pop("command")[1]).exists()
        container["envFrom"][0]["configMapRef"]["name"] = "bandoneon-job"
        return {key: value for key, value in job.items() if key not in ("completions", "parallelism")}

    assert plain("overlays/elastic") == plain("overlays/dev")


@pytest.mark.parametrize("name", JOBS)
def test_addresses_are_of_services(rendered, name):
    objects = rendered(name)
    control = only(objects, "Service", "bandoneon-scheduler")["spec"]["ports"][0]["port"]
    server = only(objects, "StatefulSet")
    (container,) = containers(template_of(server))
    variables = environment(objects, container)
    assert variables["BANDONEON_SCHEDULER"] == f"bandoneon-scheduler:{control}"
    data = only(objects, "Service", server["spec"]["serviceName"])["spec"]["ports"][0]["port"]
    assert variables["BANDONEON_ADVERTISE"] == f"tcp://pod-0.{server['spec']['serviceName']}:{data}"


@pytest.mark.parametrize("name", JOBS)
def test_a_scheduler_keeps_its_journal_on_a_volume_that_outlives_its_pod(rendered, certificates, name):
    objects = rendered(name)
    template = template_of(only(objects, "Deployment"))
    (container,) = containers(template)
    settings = check_config(container["command"], environment(objects, container, certificates, "scheduler"))
    claims = [found for found in objects if found["kind"] == "PersistentVolumeClaim"]
    volumes = {volume["name"]: volume["persistentVolumeClaim"] for volume in template["spec"]["volumes"] if "persistentVolumeClaim" in volume}
    if "no journal" in name:
        assert settings["journal"] == "" and not claims and not volumes
        return
    (claim,) = claims
    assert volumes == {"journal": {"claimName": claim["metadata"]["name"]}}
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "journal"]
    # The kubelet opens the volume's own directory to a group, and the scheduler takes only one of its own.
    assert settings["journal"] == f"{mount['mountPath']}/{settings['job-id']}" and not mount.get("readOnly")
    assert seconds(settings["scheduler-timeout"]) == (3600 if "everything" in name else 600)
    # Two generations of it, each of which may take 1 GiB.
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"] and gib(claim["spec"]["resources"]["requests"]["storage"]) >= 2
    assert claim["spec"].get("storageClassName") == ("fast" if "everything" in name else None)
    for other in (only(objects, "StatefulSet"), workers_of(objects)):
        for container in containers(template_of(other)):
            assert "BANDONEON_JOURNAL" not in environment(objects, container), other["kind"]


def gib(text):
    return float(re.fullmatch(r"(\d+)Gi?B?", text.replace("GiB", "Gi"))[1])


@pytest.mark.parametrize("name", JOBS)
def test_keys_leave_memory_for_frames(rendered, name):
    objects = rendered(name)
    (container,) = containers(template_of(only(objects, "StatefulSet")))
    keys = gib(environment(objects, container)["BANDONEON_MAX_BYTES"])
    assert keys <= 0.8 * gib(container["resources"]["limits"]["memory"])


def test_secrets_are_those_that_cert_manager_makes(rendered):
    for name in ("overlays/prod-tcp", "overlays/prod-rdma", "overlays/elastic", "helm with cert-manager"):
        objects = rendered(name)
        made = {found["spec"]["secretName"]: found["spec"] for found in objects if found["kind"] == "Certificate"}
        told = environment(objects, containers(template_of(only(objects, "StatefulSet")))[0])
        for _, template in pods(objects):
            (secret,) = [volume["secret"] for volume in template["spec"]["volumes"] if "secret" in volume]
            assert made[secret["secretName"]]["uris"] == [f"bandoneon://{told['BANDONEON_JOB_ID']}/{role_of(template)}"]


def test_a_certificate_as_cert_manager_makes_it_is_accepted(rendered, tmp_path):
    """Signed by openssl, with what the resource says: no more than the URI tells a role."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    spec = only(rendered("overlays/prod-tcp"), "Certificate", "bandoneon-server")["spec"]
    usages = {"digital signature": "digitalSignature", "client auth": "clientAuth", "server auth": "serverAuth"}
    wanted = [usages[usage] for usage in spec["usages"]]
    (tmp_path / "extensions").write_text(
        "basicConstraints=critical,CA:FALSE\n" f"keyUsage=critical,{wanted[0]}\nextendedKeyUsage={','.join(wanted[1:])}\n"
        f"subjectAltName=URI:{spec['uris'][0]}\n", encoding="utf-8")

    def openssl(*arguments):
        done = subprocess.run(["openssl", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "authority.key",
            "-out", "ca.crt", "-subj", "/CN=bandoneon-ca", "-days", "2")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "tls.key", "-out", "request",
            "-subj", f"/CN={spec['commonName']}")
    openssl("x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey", "authority.key", "-CAcreateserial", "-days", "1",
            "-extfile", "extensions", "-out", "tls.crt")
    check_config(["bandoneon-server"], {"BANDONEON_SCHEDULER": "bandoneon-scheduler:7000",
                                        "BANDONEON_TLS_CA": str(tmp_path / "ca.crt"),
                                        "BANDONEON_TLS_CERT": str(tmp_path / "tls.crt"),
                                        "BANDONEON_TLS_KEY": str(tmp_path / "tls.key")})


@pytest.mark.parametrize("name", ["overlays/prod-tcp", "helm with daemon"])
def test_a_pods_processes_are_as_many_as_its_daemon_waits_for(rendered, name):
    objects = rendered(name)
    template = template_of(only(objects, "JobSet"))
    (daemon,), (train,) = template["spec"]["initContainers"], template["spec"]["containers"]
    assert daemon["restartPolicy"] == "Always", "a sidecar"
    of_daemon, of_train = environment(objects, daemon), environment(objects, train)
    assert f"--nproc-per-node={of_daemon['BANDONEON_PROCESSES']}" in train["command"]
    assert of_daemon["BANDONEON_ATTACH"] == of_train["BANDONEON_ATTACH"] == "unix:/run/bandoneon/attach"
    assert "BANDONEON_RANK" in of_daemon and "BANDONEON_RANK" not in of_train
    shared = [mount for container in (daemon, train) for mount in container["volumeMounts"] if mount["name"] == "attach"]
    assert [mount["mountPath"] for mount in shared] == ["/run/bandoneon"] * 2
    assert set(re.findall(r"\$\((\w+)\)", " ".join(train["command"]))) <= of_train.keys()


def devices(objects, kind):
    """[{resource: count}] of the pod's containers in order, besides memory."""
    return [{name: count for name, count in container["resources"]["limits"].items() if name != "memory"}
            for container in containers(template_of(only(objects, kind)))]


def test_devices_are_of_those_containers_that_use_them(rendered):
    assert devices(rendered("overlays/dev"), "JobSet") == devices(rendered("overlays/dev"), "StatefulSet") == [{}]
    assert devices(rendered("overlays/prod-rdma"), "JobSet") == [{"nvidia.com/gpu": 1, "rdma/hca": 1}]
    assert devices(rendered("overlays/prod-rdma"), "StatefulSet") == [{"rdma/hca": 1}]
    both = objects_of(chart_with("workers.gpus.count=2", "workers.daemon.enabled=true", "rdma.enabled=true", "rdma.count=4",
                                 "rdma.resource=vpc.amazonaws.com/efa"))
    assert devices(both, "JobSet") == [{"vpc.amazonaws.com/efa": 4}, {"nvidia.com/gpu": 2}], "the daemon speaks RDMA"
    assert devices(both, "StatefulSet") == [{"vpc.amazonaws.com/efa": 4}] and devices(both, "Deployment") == [{}]


@pytest.mark.parametrize("by", ["chart", "components"])
def test_a_pods_processes_are_of_one_user_where_its_daemon_locks_memory(tmp_path, by):
    """A daemon takes processes of its own user alone."""
    values, components = VARIANTS["rdma, ipc-lock and daemon"]
    objects = objects_of(chart_with(*values)) if by == "chart" else with_components(tmp_path, "prod-tcp", *components[1:])
    daemon, train = (container["securityContext"] for container in containers(template_of(only(objects, "JobSet"))))
    assert daemon["runAsUser"] == train["runAsUser"] == 0
    assert daemon["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]} and train["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("components", [["ipc-lock-daemon"], ["worker-daemon", "ipc-lock-daemon"], ["ipc-lock", "ipc-lock-daemon"]])
def test_components_in_another_order_are_refused(tmp_path, components):
    """Rather than a capability that is nobody's."""
    write_overlay(tmp_path, "dev", *components)
    done = run(kubectl(), "kustomize", tmp_path)
    assert done.returncode != 0 and "components/ipc-lock-daemon" in done.stderr


def test_the_chart_says_what_the_fabric_is(rendered):
    told = only(rendered("helm with everything"), "ConfigMap", "bandoneon-job")["data"]
    assert [told[f"BANDONEON_{name}"] for name in ("TRANSPORT", "FABRIC_PROVIDER", "FABRIC_DOMAIN")] == ["rdma", "efa", "rdmap0s6-rdm"]


def test_namespaces_enforce_what_pods_promise(rendered):
    for overlay in OVERLAYS:
        objects = rendered(f"overlays/{overlay}")
        namespace = only(objects, "Namespace")["metadata"]
        privileged = any(locks_memory(template) for _, template in pods(objects))
        assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == ("privileged" if privileged else "restricted")
        assert privileged == (overlay == "prod-rdma")
        assert {found["metadata"].get("namespace") for found in objects if found["kind"] != "Namespace"} == {namespace["name"]}


def test_the_trainers_runtime_tells_workers_what_the_base_does(rendered):
    runtime = only(rendered("trainer"), "ClusterTrainingRuntime")
    told = only(rendered("overlays/dev"), "ConfigMap")["data"]
    variables = environment([], template_of(runtime)["spec"]["containers"][0])
    assert variables and all(told[key] == value for key, value in variables.items())
    assert {"BANDONEON_SCHEDULER", "BANDONEON_TLS_KEY"} <= variables.keys()
    job = only(rendered("trainer"), "TrainJob")["spec"]
    assert job["trainer"]["numNodes"] * job["trainer"]["numProcPerNode"] == int(told["BANDONEON_WORKERS"])
    assert job["runtimeRef"]["name"] == runtime["metadata"]["name"]
    # By these two the controller finds the container that trains.
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert template_of(runtime)["spec"]["containers"][0]["name"] == "node"


# ---- The chart


def test_values_fit_their_schema():
    text = (CHART / "values.schema.json").read_text(encoding="utf-8")
    rules = yaml.safe_load(text)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(rules)
    jsonschema.validate(values, rules)
    for wrong in ({"job": values["job"] | {"worker": 2}}, {"job": values["job"] | {"workers": 0}}, {"extra": 1}, {"monitoring": values["monitoring"] | {"namespace": "Not One"}},
                  {"rdma": values["rdma"] | {"resource": "hca"}}, {"rdma": values["rdma"] | {"count": 0}},
                  {"scheduler": values["scheduler"] | {"journal": values["scheduler"]["journal"] | {"size": "2G"}}},
                  {"scheduler": values["scheduler"] | {"journal": values["scheduler"]["journal"] | {"timeout": "soon"}}},
                  {"scheduler": values["scheduler"] | {"journal": {"enabled": False}}},
                  {"workers": values["workers"] | {"gpus": {"count": -1, "resource": "nvidia.com/gpu"}}},
                  {"workers": values["workers"] | {"daemon": values["workers"]["daemon"] | {"processes": 0}}},
                  {"workers": values["workers"] | {"daemon": values["workers"]["daemon"] | {"drainTimeout": "30"}}},
                  {"workers": values["workers"] | {"kind": "Deployment"}}, {"workers": values["workers"] | {"backoffLimitPerIndex": -1}},
                  {"workers": values["workers"] | {"terminationGracePeriodSeconds": 0}}, {"job": values["job"] | {"minWorkers": -1}}, {"job": values["job"] | {"maxWorkers": 0.5}},
                  {"images": values["images"] | {"torch": {"repository": "x", "tag": "latest", "digest": ""}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values | wrong, rules)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == VERSION
    assert values["job"]["terminationGracePeriodSeconds"] > seconds(values["job"]["drainTimeout"])
    assert values["workers"]["terminationGracePeriodSeconds"] > seconds(values["workers"]["daemon"]["drainTimeout"])


def test_helm_finds_nothing_wrong():
    done = run(helm(), "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_the_chart_refuses_values_that_mean_nothing():
    done = run(helm(), "template", "release", CHART, "--set", "job.wrokers=3")
    assert done.returncode != 0 and "wrokers" in done.stderr


def test_the_chart_refuses_more_workers_at_least_than_there_are():
    done = run(*chart_with("job.workers=3", "job.minWorkers=4"))
    assert done.returncode != 0 and "job.minWorkers is 4: expected 0 (all) to 3, which is job.workers" in done.stderr
    assert job_of(workers_of(objects_of(chart_with("job.workers=3", "job.minWorkers=3"))))["maxFailedIndexes"] == 0


def test_the_chart_refuses_fewer_workers_at_most_than_there_are():
    done = run(*chart_with("job.workers=3", "job.maxWorkers=2"))
    assert done.returncode != 0 and "job.maxWorkers is 2: expected 0 (as many as job.workers) or at least 3" in done.stderr


def plain(objects):
    """{(kind, name): object} without what only kustomize, or only the chart, says."""
    text = yaml.safe_dump([found for found in objects if found["kind"] != "Namespace"])
    found = yaml.safe_load(re.sub(r"bandoneon-job-\w+", "bandoneon-job", text))
    for one in found:
        one["metadata"].pop("namespace", None)
        if one["kind"] in TEMPLATES:
            template_of(one)["metadata"].pop("annotations", None)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.mark.parametrize("components", [[], ["worker-daemon"]])
def test_the_charts_plain_job_is_the_elastic_overlays(rendered, tmp_path, components):
    ours = plain(with_components(tmp_path, "elastic", *components))
    theirs = plain(rendered("helm with a plain Job" + (" and daemons" if components else "")))
    for objects in (ours, theirs):  # kustomize puts a variable that an overlay changes first
        containers(template_of(objects["Deployment", "bandoneon-scheduler"]))[0]["env"].sort(key=lambda entry: entry["name"])
    assert ours == theirs


@pytest.mark.parametrize("variant", ["", *VARIANTS])
def test_the_chart_says_what_kustomize_says(rendered, tmp_path, variant):
    _, components = VARIANTS.get(variant, ([], []))
    ours, theirs = plain(with_components(tmp_path, "dev", *components)), plain(rendered(f"helm with {variant}"))
    # What the overlay says of a single node.
    server = template_of(ours["StatefulSet", "bandoneon-server"])["spec"]
    server["topologySpreadConstraints"][0]["whenUnsatisfiable"] = "DoNotSchedule"
    server["containers"][0]["resources"]["requests"]["cpu"] = "1"
    assert ours == theirs
