"""The images of deploy/docker, built as the Dockerfile says, and run with the job of compose.yaml."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from debian_roots import ROOT, need
from containers import Container, Image, Network, bind, run, tmpfs

sys.path.insert(0, str(ROOT / "tests" / "deploy"))
from deploy_helpers import fill_in  # noqa: E402

DOCKER = ROOT / "deploy" / "docker"
VERSION = re.search(r"project\(bandoneon VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
DEBIAN = "debian:12-slim"  # the default of BASE
MADE = "localhost/bandoneon-base:12"
MOST_BYTES = 150_000_000  # compressed, beyond the base
DAEMONS = ("scheduler", "server-0", "server-1")


def has_image(name):
    done = subprocess.run(["buildah", "inspect", "--type", "image", name], capture_output=True, check=False)
    return done.returncode == 0


def build(target, tag, base, *options):
    # All targets by the same arguments, or what they share is built again.
    arguments = {"BASE": base, "VERSION": VERSION, "JOBS": os.cpu_count()}
    run("buildah", "bud", "--layers", "--isolation", "chroot", "--pull-never", "-f", DOCKER / "Dockerfile", "--target", target,
        *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")), *options, "-t", tag, ROOT,
        timeout=3600)
    return Image(tag)


@pytest.fixture(scope="module")
def base_name(request):
    """What the images are built on: the Dockerfile's own base where this machine has it, or a Debian of our own."""
    need("buildah", "runc", "ip")
    if has_image(DEBIAN):
        return DEBIAN
    if not has_image(MADE):
        container = run("buildah", "from", "scratch")
        run("buildah", "add", "-q", container, request.getfixturevalue("base"), "/")
        run("buildah", "config", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", container)
        run("buildah", "commit", "-q", "--rm", container, MADE)
    return MADE


@pytest.fixture(scope="module")
def daemons(base_name):
    image = build("daemons", "bandoneon:0.1.0", base_name)
    yield image
    image.close()


@pytest.fixture(scope="module")
def torch(daemons, base_name):
    """With torch as this tree's environment has it, from wheels that its pip finds."""
    wheels = ROOT / "build" / "deploy" / "wheels"
    wanted = re.findall(r"^(?:torch|numpy)==\S+", (ROOT / "scripts" / "requirements.txt").read_text(), re.MULTILINE)
    run(sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "download", "-q", "-d", wheels, *wanted,
        "setuptools>=64", timeout=1800)
    image = build("torch", "bandoneon-torch:0.1.0", base_name, "--volume", f"{wheels}:/wheels:ro", "--build-arg",
                  f"TORCH=--no-index --find-links /wheels {' '.join(wanted)}")
    yield image
    image.close()


@pytest.fixture
def shell(tmp_path):
    """What a script prints in a container of an image."""
    def run_script(image, script):
        container = Container(image, tmp_path, "shell", ["sh", "-c", f"exec 2>&1; {script}"], mounts=[tmpfs("/tmp")])
        try:
            return container.wait()
        finally:
            container.close()
    return run_script


@pytest.fixture(params=["daemons", "torch"])
def image(request):
    return request.getfixturevalue(request.param)


def test_says_what_it_is_and_runs_as_nobody(image):
    assert image.config["User"] == "65532:65532"
    assert image.config["StopSignal"] == "SIGTERM"
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in image.config["Labels"].items()}
    assert labels["title"] == "bandoneon" and labels["version"] == VERSION and labels["licenses"] == "Apache-2.0"


def test_can_write_nothing_but_tmp(image, shell):
    code, output = shell(image, "id -u; id -g; grep CapEff /proc/self/status; touch /tmp/x && echo may; touch /x /usr/local/x")
    assert code != 0 and output.split()[:5] == ["65532", "65532", "CapEff:", "0000000000000000", "may"]
    assert output.count("Read-only file system") == 2


def test_nobody_becomes_root(image):
    assert run("find", image.root, "-xdev", "-type", "f", "-perm", "/6000") == ""


def test_has_all_libraries_that_it_needs(image, shell):
    code, output = shell(image, "for f in /usr/local/bin/bandoneon* /usr/local/lib/libbandoneon.so.*; do ldd $f || exit 1; done")
    assert code == 0 and output.count("libc.so.6") >= 5
    assert "not found" not in output


@pytest.mark.parametrize("program", ["bandoneon", "bandoneon-scheduler", "bandoneon-server", "bandoneon-worker"])
def test_programs_start(daemons, shell, program):
    code, output = shell(daemons, f"{program} --version")
    assert code == 0 and VERSION in output


def test_over_its_memory_a_container_is_killed(daemons, tmp_path):
    container = Container(daemons, tmp_path, "greedy", ["tail", "/dev/zero"], most_memory=64 << 20)
    try:
        assert container.wait()[0] == 128 + 9
    finally:
        container.close()


def layers(image, folder):
    """{digest: bytes} as a registry would hold them."""
    run("buildah", "push", "-q", image, f"oci:{folder}:it")
    blob = json.loads((folder / "index.json").read_text())["manifests"][0]["digest"].replace(":", "/")
    return {layer["digest"]: layer["size"] for layer in json.loads((folder / "blobs" / blob).read_text())["layers"]}


def test_is_small(daemons, base_name, tmp_path):
    of_base, all_of_it = layers(base_name, tmp_path / "base"), layers(daemons.name, tmp_path / "image")
    beyond = sum(size for digest, size in all_of_it.items() if digest not in of_base)
    print(f"\n{beyond / 1e6:.1f} MB compressed beyond a base of {sum(of_base.values()) / 1e6:.1f} MB")
    assert set(of_base) < set(all_of_it) and beyond < MOST_BYTES


class Composed:
    """The services of compose.yaml."""

    def __init__(self, folder, images):
        self._services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
        self._folder, self._images = folder, images
        self._network = Network(list(self._services))
        (folder / "hosts").write_text(self._network.hosts())
        self._started = []

    def start(self, name, command=None, image=None, mounts=(), **env):
        """A service, or what else runs beside it, at its address."""
        service = self._services[name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        mounts = [*mounts, *(tmpfs(path) for path in service["tmpfs"]), bind(self._folder / "hosts", "/etc/hosts")]
        variables = {key: fill_in(value, {}) for key, value in service.get("environment", {}).items()} | env
        for volume in service["volumes"]:
            source, path, *mode = volume.split(":")
            (self._folder / source).mkdir(exist_ok=True)
            os.chown(self._folder / source, 65532, 65532)
            mounts.append(bind(self._folder / source, path, mode == ["ro"]))
        container = Container(self._images[image or service["image"].split(":")[0]], self._folder, name,
                              command or [word.replace("$$", "$") for word in service["command"]],
                              env=[f"{key}={value}" for key, value in variables.items()], mounts=mounts,
                              namespace=self._network.namespace(name), cwd=service.get("working_dir"))
        self._started.append(container)
        return container

    def health(self, name, service):
        """As who watches over it asks, from another host."""
        return run("ip", "netns", "exec", self._network.namespace("certs"), sys.executable,
                   ROOT / "tests" / "system" / "ask_health.py", f"{self._network.addresses[name]}:7080", service)

    def close(self):
        for container in self._started:
            container.close()
        self._network.close()


def test_the_job_of_compose_trains_and_drains(daemons, torch, tmp_path):
    composed = Composed(tmp_path, {"bandoneon": daemons, "bandoneon-torch": torch})
    try:
        code, output = composed.start("certs").wait()
        assert code == 0, output
        services = {name: composed.start(name) for name in DAEMONS}
        for name in DAEMONS:
            services[name].wait_for("health service at port 7080")
        assert {composed.health(name, "liveness") for name in DAEMONS} == {"SERVING"}
        assert composed.health("server-0", "readiness") == "NOT_SERVING"
        train = ["python", "byteps_compress.py", "--steps", "300"]  # long enough for all that follows
        workers = [composed.start(f"worker-{rank}", train, BANDONEON_RANK=str(rank)) for rank in range(2)]
        workers[0].wait_for("step 20:")
        assert {composed.health(name, "readiness") for name in DAEMONS} == {"SERVING"}
        # The restart policy makes an engine do this.
        services["scheduler"].signal("KILL")
        assert services["scheduler"].wait()[0] == 128 + 9
        services["scheduler"] = composed.start("scheduler")
        services["scheduler"].wait_for("this scheduler goes on with job compose")
        # One hands its keys over and ends, and the other, on which all depends then, drains.
        services["server-0"].signal("TERM")
        assert services["server-0"].wait()[0] == 0
        services["server-1"].signal("TERM")
        services["server-1"].wait_for("to end by itself")
        assert composed.health("server-1", "readiness") == "NOT_SERVING"
        ends = [container.wait() for container in (*workers, *services.values())]
        assert [code for code, _ in ends] == [0] * 5, ends
        models = [re.search(r"model (\w+)", output)[1] for _, output in ends[:2]]
        assert models[0] == models[1]
        assert "encrypted" in ends[3][1], "frames between hosts"
    finally:
        composed.close()


def test_a_second_signal_ends_the_first_process_of_a_container(daemons, torch, tmp_path):
    """To which a signal without a handler does nothing."""
    composed = Composed(tmp_path, {"bandoneon": daemons, "bandoneon-torch": torch})
    try:
        assert composed.start("certs").wait()[0] == 0
        services = {name: composed.start(name) for name in DAEMONS}
        for rank in range(2):
            composed.start(f"worker-{rank}")
        services["server-0"].wait_for("is ready (node")
        services["server-1"].signal("KILL")
        services["scheduler"].wait_for("without server 1")
        services["server-0"].signal("TERM")
        services["server-0"].wait_for("to end by itself")
        services["server-0"].signal("TERM")
        assert services["server-0"].wait(10)[0] == 128 + 15
    finally:
        composed.close()


def test_processes_of_a_pod_train_through_their_sidecar(daemons, torch, tmp_path):
    """As the component worker-daemon has it: other containers, with process ids of their own, a network and a folder in common."""
    composed = Composed(tmp_path, {"bandoneon": daemons, "bandoneon-torch": torch})
    attach = tmp_path / "attach"
    attach.mkdir(mode=0o2770)
    os.chown(attach, 65532, 65532)
    shared, address = [bind(attach, "/run/bandoneon", read_only=False)], "unix:/run/bandoneon/attach"
    try:
        assert composed.start("certs").wait()[0] == 0
        services = [composed.start("scheduler", BANDONEON_WORKERS="1", BANDONEON_SERVERS="1"), composed.start("server-0")]
        daemon = composed.start("worker-0", ["bandoneon-worker"], "bandoneon", shared, BANDONEON_ATTACH=address, BANDONEON_PROCESSES="2")
        daemon.wait_for("takes 2 processes")
        train = composed.start("worker-0", ["torchrun", "--nproc-per-node=2", "byteps_compress.py", "--steps", "20"], None, shared,
                               BANDONEON_ATTACH=address)
        code, output = train.wait(300)
        assert code == 0 and len(set(re.findall(r"model (\w+)", output))) == 1 and output.count("validation loss") == 2, output
        assert [container.wait()[0] for container in (daemon, *services)] == [0, 0, 0]
    finally:
        composed.close()
