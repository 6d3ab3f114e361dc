"""Jobs of `bandoneon run` whose processes lose themselves at named points (common/base/fault_point.h), and the facts that must hold of
them. For fault_matrix_test.py and scripts/chaos."""

import dataclasses
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin")).parent
FAULTY = BUILD / "faulty"
PROGRAM = pathlib.Path(__file__).with_name("faulty_program.py")
CUT_SIGNAL = signal.SIGRTMIN + 5  # as faults.cc
STOPPED_FOR = 3.5  # seconds; longer than a lease
LEASES = ["--set", "lease-timeout=2s", "--set", "heartbeat-interval=200ms", "--set", "probe-interval=500ms"]
LINK_DOWN = 1.0  # seconds; shorter than a lease
LONGEST = 30  # seconds that a wait may take

loader = importlib.machinery.SourceFileLoader("check_history", str(ROOT / "scripts" / "check_history"))
check_history = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_history", loader))
loader.exec_module(check_history)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One process does `action` at a point, and others with it as soon as it has."""
    role: str  # server, scheduler, worker or daemon
    point: str
    action: str  # kill, stop or cut
    at: int = 1
    rank: int | None = None
    # Of (role, rank or None): those that are lost with it. The role link is the job's network, where it has one of its own: it
    # carries nothing for LINK_DOWN seconds.
    beside: tuple = ()
    step: int = 0  # rounds or pushes that its process has seen before
    # It comes as soon as the fault before it has; otherwise, in a job whose workers come back, once all are there again.
    is_amid: bool = False

    def text(self, once_file, after):
        what = f"stop:{STOPPED_FOR}" if self.action == "stop" else self.action
        if self.role == "daemon" and self.action == "cut":
            what = "cut:tcp"  # Its processes are on the same machine.
        parts = [f"role={self.role}", f"point={self.point}", f"at={self.at}", f"do={what}", f"once-file={once_file}"]
        if self.rank is not None:
            parts.append(f"rank={self.rank}")
        if self.step:
            parts.append(f"step={self.step}")
        if self.point == "admit.some":
            # All have heard that the job has begun, and so has `bandoneon run`, which takes a loss before that for another one.
            parts.append("wait=1000" if self.role in ("worker", "daemon") else "wait=300")
        elif self.point.endswith((".some", ".said", ".held")):
            parts.append("wait=20")  # What was sent before it has gone out then.
        if after is not None:
            parts.append(f"after={after}")
        return ",".join(parts)


class Finding(Exception):
    """A fact that does not hold of a job."""


@dataclasses.dataclass
class Plan:
    """A job: its program and options, and the faults, one after the other."""
    program: list
    options: list
    workers: int = 2
    servers: int = 2
    hosts: int = 0
    faults: list = dataclasses.field(default_factory=list)
    settings: dict = dataclasses.field(default_factory=dict)
    seed: int = 7
    takes_in: bool = False  # workers that are lost are started again, and come back
    own_network: bool = False  # as unshare of util-linux makes it, for root

    def command(self, folder, restarts):
        size = ["--hosts", self.hosts, "--procs-per-host", self.workers // self.hosts] if self.hosts else ["-n", self.workers]
        words = [FAULTY / "bin" / "bandoneon", "run", *size, "-s", self.servers, "--seed", self.seed, "--set", "min-compress-bytes=1",
                 "--set", f"history-file={folder}/history", "--restarts", restarts, *LEASES, *self.options,
                 "--", sys.executable, *self.program]
        network = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if self.own_network else []
        return [str(word) for word in [*network, *words]]


class Job:
    """One run of a plan in a folder of its own."""

    def __init__(self, plan, folder):
        self.plan = plan
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.output = ""
        self.code = None
        self.shared_before = set(shared_memory())

    def once_file(self, index):
        return self.folder / f"fault-{index}"

    def _before(self, index):
        """A file that is there once this fault may come, or None."""
        if index == 0:
            return None
        if self.plan.takes_in and not self.plan.faults[index].is_amid:
            return self.folder / f"whole-{index - 1}"
        return self.once_file(index - 1)

    def pid_of(self, index):
        """The pid of the process that did this fault; 0: none has yet."""
        path = self.once_file(index)
        words = path.read_text().split() if path.exists() else []
        return int(words[-1]) if words else 0

    def run(self, limit=150):
        """Runs the job to its end, and returns the seconds that it took."""
        faults = self.plan.faults
        texts = [fault.text(self.once_file(i), self._before(i)) for i, fault in enumerate(faults)]
        # Of Python's places by elastic_faults.py, all others by faults.cc.
        of_state = [text for text, fault in zip(texts, faults) if fault.point.startswith("state.")]
        others = [text for text, fault in zip(texts, faults) if not fault.point.startswith("state.")]
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        env |= {"TEST_DIR": str(self.folder), "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1",
                "BANDONEON_LIBRARY": str(FAULTY / "lib" / "libbandoneon.so"), "BANDONEON_FAULT": ";".join(others),
                "TEST_STATE_FAULTS": ";".join(of_state)} | self.plan.settings
        begun = time.monotonic()
        with open(self.folder / "output", "w") as output:
            child = subprocess.Popen(self.plan.command(self.folder, 2 * len(texts) + 4), env=env, stdin=subprocess.DEVNULL,
                                     stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                self._attend(child, begun + limit)
            finally:
                if child.poll() is None:
                    self._end(child)
        self.code = child.wait()
        self.output = (self.folder / "output").read_text(errors="replace")
        return time.monotonic() - begun

    def _end(self, child):
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def _attend(self, child, deadline):
        """Waits for the end; lets those that are to be lost beside a process that is lost follow it."""
        continued = []  # of (time, pid)
        waiting = list(range(len(self.plan.faults)))
        while child.poll() is None and time.monotonic() < deadline:
            if waiting and self.pid_of(waiting[0]):
                first = self.pid_of(waiting[0])
                fault = self.plan.faults[waiting.pop(0)]
                for role, rank in fault.beside:
                    if role == "link":
                        self._link(child, "down")
                        continued.append((time.monotonic() + LINK_DOWN, 0))
                        continue
                    for pid in set(self.processes(role, rank)) - {first}:
                        send(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "cut": CUT_SIGNAL}[fault.action])
                        if fault.action == "stop":
                            continued.append((time.monotonic() + STOPPED_FOR, pid))
            for one in [one for one in continued if one[0] < time.monotonic()]:
                continued.remove(one)
                self._go_on(child, one[1])
            time.sleep(0.01)
        for _, pid in continued:
            self._go_on(child, pid)

    def _go_on(self, child, pid):
        if pid:
            send(pid, signal.SIGCONT)
        else:
            self._link(child, "up")

    def _link(self, child, state):
        subprocess.run(["nsenter", "--target", str(child.pid), "--net", "ip", "link", "set", "lo", state], check=False,
                       stderr=subprocess.DEVNULL)

    def processes(self, role=None, rank=None):
        """The pids of this job's processes that live, of a role and rank or all."""
        name = {"server": b"bandoneon-server", "scheduler": b"bandoneon-scheduler", "daemon": b"bandoneon-worker",
                "worker": os.fsencode(str(self.plan.program[0])), None: b""}[role]
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            is_of_this = f"TEST_DIR={self.folder}".encode() in environ
            has_name = name in words and (role is None or b"\0run\0" not in words)
            has_rank = rank is None or (f"--rank={rank}".encode() in words.split(b"\0") or f"RANK={rank}".encode() in environ)
            if is_of_this and has_name and has_rank and parent:
                found.append(int(entry.name))
        return found

    # ---- facts

    def done(self):
        """The faults that were reached."""
        return [fault for index, fault in enumerate(self.plan.faults) if self.once_file(index).exists()]

    def check(self, expected=None, must_reach=True):
        """Raises Finding. `expected` are the weights of an undisturbed run; None: some workers are lost."""
        tail = self.output[-3500:]
        for index, fault in enumerate(self.plan.faults):
            if must_reach and not self.once_file(index).exists():
                raise Finding(f"fault {index} was never reached: {fault}\n{tail}")
        if self.code != 0:
            raise Finding(f"the job ended with {self.code}\n{tail}")
        self.check_weights(expected, tail)
        self.check_steps()
        for _ in range(50):  # A child that lets a stopped process go on ends within 0.1 s.
            left = self.processes()
            if not left:
                break
            time.sleep(0.1)
        if left:
            raise Finding(f"processes are left: {left}")
        files = [path.name for path in self.folder.iterdir() if path.name.startswith("bandoneon-")]
        files += sorted(set(shared_memory()) - self.shared_before)
        if files:
            raise Finding(f"files are left: {files}")
        try:
            # In a chain of losses a push may wait for several of them.
            longest = LONGEST * (1 if len(self.plan.faults) < 3 else 3)
            check_history.check(sorted(self.folder.glob("history.*")), longest)
        except check_history.Contradiction as error:
            raise Finding(f"the histories contradict each other: {error}") from None

    def weights(self):
        """{rank: checksum}"""
        return dict(re.findall(r"^\[worker (\d+)\] weights (\w+)$", self.output, re.MULTILINE))

    def check_weights(self, expected, tail):
        weights = self.weights()
        if len(weights) < (self.plan.workers if expected or self.plan.takes_in else 1):
            raise Finding(f"not all workers have ended: {weights}\n{tail}")
        if len(set(weights.values())) != 1:
            raise Finding(f"workers have different weights: {weights}")
        if expected is not None and set(weights.values()) != {expected}:
            raise Finding(f"the weights are {weights}, and {expected} in an undisturbed run\n{tail}")

    def check_steps(self):
        """Workers that were not lost agree in each step."""
        steps = {path.suffix: path.read_text().splitlines() for path in self.folder.glob("steps.*")}
        survivors = {f".{rank}": steps[f".{rank}"] for rank in self.weights()}
        if self.plan.takes_in:
            return self._check_steps_by_number(survivors)
        first = next(iter(survivors.values()))
        for rank, lines in survivors.items():
            for number, (mine, theirs) in enumerate(zip(lines, first), 1):
                if mine != theirs:
                    raise Finding(f"worker {rank[1:]} has other weights in line {number} of its steps: {mine} and {theirs}")

    def _check_steps_by_number(self, steps):
        """Of ranks that several processes have had, one after the other."""
        known = {}
        for rank, lines in steps.items():
            for line in lines:
                number, _, weights = line.partition(" ")
                if weights and known.setdefault(number, weights) != weights:
                    raise Finding(f"worker {rank[1:]} has other weights in step {number}: {weights} and {known[number]}")


def shared_memory():
    """The names of shared memory that this program may have made."""
    return [str(path) for path in pathlib.Path("/dev/shm").glob("*bandoneon*")]


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def undisturbed(plan, folder):
    """The weights of the same job without faults."""
    job = Job(dataclasses.replace(plan, faults=[]), folder)
    job.run()
    job.check()
    (weights,) = set(job.weights().values())
    return weights


def certificates(folder):
    """A job's certificates, and the settings by which its processes use them."""
    command = [str(FAULTY / "bin" / "bandoneon"), "certs"]
    pathlib.Path(folder).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "init", "--dir", folder, "--job", "tried"], check=True, capture_output=True)
    roles = [word for role in ("scheduler", "server", "worker", "observer") for word in ("--role", role)]
    subprocess.run([*command, "issue", "--dir", folder, *roles, "--name", "all"], check=True, capture_output=True)
    return ["--transport", "network", "--set", "data-security=encrypted", *(
        word for name, file in (("ca", "ca"), ("cert", "cert"), ("key", "key"))
        for word in ("--set", f"tls-{name}={folder}/all/{file}.pem"))]


TRANSPORTS = {
    "shm": [],
    "tcp": ["--transport", "network"],
    "tls": None,  # by certificates()
    "tcp;ofi_rxm": ["--transport", "rdma", "--provider", "tcp;ofi_rxm", "--set", "fabric-interface=127.0.0.1",
                    "--set", "fabric-window=8MiB"],
}


POINTS = re.findall(r'^    "([a-z.]+)",', (ROOT / "common" / "base" / "fault_point.h").read_text(), re.MULTILINE)


def options_of(transport, folder):
    """The options of `bandoneon run` for a transport; certificates come into the folder."""
    return certificates(folder) if transport == "tls" else TRANSPORTS[transport]
