"""deploy/docker, by reading: what its files say against the tree, the daemons and each other."""

import re

import pytest
import yaml
from deploy_helpers import DEPLOY, ROLES, ROOT, check_config, fill_in, issue_certificates, seconds

VERSION = re.search(r"project\(bandoneon VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE_TEXT = (DEPLOY / "docker" / "compose.yaml").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES = COMPOSE["services"]


def stage(name):
    return re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)[1]


def of_role(role):
    return [name for name in SERVICES if re.fullmatch(rf"{role}(-\d+)?", name)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return issue_certificates(tmp_path_factory.mktemp("certs"), "compose")


def test_every_base_is_the_argument():
    bases = re.findall(r"^FROM (\S+) AS (\w+)", DOCKERFILE, re.MULTILINE)
    stages = [name for _, name in bases]
    assert stages == ["build", "daemons", "venv", "torch"]
    assert all(base in ("${BASE}", *stages) for base, _ in bases)


def test_all_that_is_built_is_copied():
    modules = set(re.findall(r"^add_subdirectory\((\w+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE))
    # What a module takes of elsewhere in the tree.
    named = {path for module in modules for found in (ROOT / module).rglob("CMakeLists.txt")
             for path in re.findall(r"\$\{PROJECT_SOURCE_DIR\}/([\w./-]+)", found.read_text(encoding="utf-8"))}
    elsewhere = {path for path in named if path.split("/")[0] not in modules | {"cmake"}}
    copied = dict(re.findall(r"^COPY (\S+) (/src/\S*)", stage("build"), re.MULTILINE))
    assert copied.keys() == modules | elsewhere | {"CMakeLists.txt", "cmake"}
    for path in elsewhere:
        assert copied[path] == f"/src/{path.rpartition('/')[0]}/" and (ROOT / path).is_file()


def test_builds_with_what_bootstrap_installs():
    installed = (ROOT / "scripts" / "bootstrap").read_text(encoding="utf-8").split("install_packages", 1)[1].split("\n\n")[0]
    packages = re.search(r"--no-install-recommends (.*?)\nCOPY", stage("build"), re.DOTALL)[1].replace("\\", "").split()
    assert packages and set(packages) <= set(installed.replace("\\", "").split())


@pytest.mark.parametrize("target", ["daemons", "torch"])
def test_nobody_runs_as_root(target):
    assert re.findall(r"^USER (.*)$", stage(target), re.MULTILINE)[-1] == "65532:65532"


def test_versions_are_the_trees():
    assert re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE, re.MULTILINE) == [VERSION]
    assert {service["image"] for service in SERVICES.values()} == {f"bandoneon:{VERSION}", f"bandoneon-torch:{VERSION}"}
    assert f"-t bandoneon:{VERSION} ." in DOCKERFILE and f"-t bandoneon-torch:{VERSION} ." in DOCKERFILE
    pins = (ROOT / "scripts" / "requirements.txt").read_text(encoding="utf-8").split()
    assert set(re.search(r'^ARG TORCH="(.*)"$', DOCKERFILE, re.MULTILINE)[1].split()) <= set(pins)


@pytest.mark.parametrize("name", of_role("scheduler") + of_role("server"))
def test_daemons_accept_what_they_are_started_with(certificates, name):
    service = SERVICES[name]
    folder = str(certificates[name.split("-")[0]])
    variables = {key: fill_in(value, {}).replace("/certs", folder) for key, value in service["environment"].items()}
    settings = check_config(service["command"], variables)
    assert settings["job-id"] == "compose" and settings["insecure"] == "false"
    assert seconds(service["stop_grace_period"]) > seconds(settings["drain-timeout"])


def test_a_scheduler_that_is_lost_starts_again_with_its_journal(certificates):
    service = SERVICES["scheduler"]
    assert fill_in(service["restart"], {}) == "on-failure"
    assert not any("restart" in SERVICES[name] for name in SERVICES if name != "scheduler"), "the job does not take others back"

    def journal(variables):
        environment = {key: fill_in(value, variables).replace("/certs", str(certificates["scheduler"]))
                       for key, value in service["environment"].items()}
        return check_config(service["command"], environment)["journal"]

    # In a directory of the volume, whose own the image gives to the user of the daemons.
    assert journal({}) == "/journal/compose" and "scheduler-journal:/journal" in service["volumes"]
    assert "/journal" in re.search(r"install -d -o 65532 -g 65532 -m 0700 (.*)$", stage("daemons"), re.MULTILINE)[1].split()
    # The comment at the head of the file turns the journal off so.
    off = dict(word.split("=") for word in re.search(r"^# .*?(SCHEDULER_JOURNAL=\S*) (SCHEDULER_RESTART=\S+)", COMPOSE_TEXT,
                                                     re.MULTILINE).groups())
    assert journal(off) == "" and fill_in(service["restart"], off) == "no"


def test_the_job_is_as_large_as_the_scheduler_is_told():
    environment = SERVICES["scheduler"]["environment"]
    assert int(environment["BANDONEON_WORKERS"]) == len(of_role("worker")) > 0
    assert int(environment["BANDONEON_SERVERS"]) == len(of_role("server")) > 0


def test_addresses_are_of_services_that_listen_there():
    port = SERVICES["scheduler"]["environment"]["BANDONEON_LISTEN"].rsplit(":", 1)[1]
    for name in of_role("server") + of_role("worker"):
        assert SERVICES[name]["environment"]["BANDONEON_SCHEDULER"] == f"scheduler:{port}"
    for name in of_role("server"):
        port = SERVICES[name]["environment"]["BANDONEON_LISTEN"].rsplit(":", 1)[1]
        assert f"--advertise=tcp://{name}:{port}" in SERVICES[name]["command"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_no_more_than_it_must(name):
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service
    if name != "certs":
        certs, *others = service["volumes"]
        assert re.fullmatch(r"(\w+)-certs:/certs:ro", certs)[1] == name.split("-")[0]
        assert others == (["scheduler-journal:/journal"] if name == "scheduler" else [])
        assert service["depends_on"]["certs"]["condition"] == "service_completed_successfully"


def test_certificates_are_made_for_each_role():
    script = SERVICES["certs"]["command"][-1]
    assert f"for role in {' '.join(ROLES)}; do" in script and "--job compose" in script
    assert set(COMPOSE["volumes"]) == {f"{role}-certs" for role in ROLES} | {"scheduler-journal"}
    for role in ROLES:
        assert f"{role}-certs:/certs/{role}" in SERVICES["certs"]["volumes"]
