"""Runs containers of images that buildah holds, by runc, each with an address of its own: what compose.yaml asks of an engine."""

import json
import pathlib
import subprocess
import threading
import uuid

# What engines hide and mount of every container.
MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout.strip()


class Image:
    """One that buildah has, mounted."""

    def __init__(self, name):
        self.name = name
        self.config = json.loads(run("buildah", "inspect", "--type", "image", name))["OCIv1"]["config"]
        self._container = run("buildah", "from", "--pull-never", name)
        self.root = pathlib.Path(run("buildah", "mount", self._container))

    def close(self):
        run("buildah", "rm", self._container)


class Network:
    """Named addresses: a network namespace for each, joined by a bridge in one more."""

    def __init__(self, names):
        tag = "bdn" + uuid.uuid4().hex[:6]
        self._switch = tag + "s"
        self._namespaces = {name: f"{tag}{i}" for i, name in enumerate(names)}
        self.addresses = {name: f"10.198.0.{i + 1}" for i, name in enumerate(names)}
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "bridge", "up")
        for name, namespace in self._namespaces.items():
            self._ip("netns", "add", namespace)
            self._ip("-n", namespace, "link", "add", "net", "type", "veth", "peer", "name", namespace, "netns", self._switch)
            self._ip("-n", self._switch, "link", "set", namespace, "master", "bridge", "up")
            self._ip("-n", namespace, "addr", "add", self.addresses[name] + "/24", "dev", "net")
            self._ip("-n", namespace, "link", "set", "net", "up")
            self._ip("-n", namespace, "link", "set", "lo", "up")

    @staticmethod
    def _ip(*arguments):
        run("ip", *arguments)

    def namespace(self, name):
        return self._namespaces[name]

    def hosts(self):
        return "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in self.addresses.items())

    def close(self):
        for name in (*self._namespaces.values(), self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False)


class Container:
    """A process of an image, as the image's user, with its root read-only, no capability and no way to gain any."""

    def __init__(self, image, folder, name, args, *, env=(), mounts=(), namespace=None, cwd=None,
                 most_memory=None):
        self.name = name
        self.id = f"{name}-{uuid.uuid4().hex[:8]}"
        self.lines = []
        self._said = threading.Condition()
        uid, gid = map(int, image.config["User"].split(":"))
        bundle = folder / self.id
        bundle.mkdir()
        network = {"type": "network"} | ({"path": f"/var/run/netns/{namespace}"} if namespace else {})
        config = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": uid, "gid": gid}, "args": list(args), "env": [*image.config["Env"], *env],
                        "cwd": cwd or image.config.get("WorkingDir") or "/", "noNewPrivileges": True,
                        "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable")}},
            "root": {"path": str(image.root), "readonly": True},
            "hostname": name,
            "mounts": [*MOUNTS, *mounts],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")] + [network]},
        }
        if most_memory is not None:
            config["linux"]["resources"] = {"memory": {"limit": most_memory, "swap": most_memory}}
        (bundle / "config.json").write_text(json.dumps(config))
        self._child = subprocess.Popen(["runc", "run", "--bundle", bundle, self.id], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._child.stdout:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()
        with self._said:
            self._said.notify_all()

    def wait_for(self, text, timeout=120):
        with self._said:
            self._said.wait_for(lambda: text in "".join(self.lines) or self._child.poll() is not None, timeout)
        assert text in "".join(self.lines), f"{self.name} never said {text!r}:\n{''.join(self.lines)}"

    def signal(self, name):
        run("runc", "kill", self.id, name)

    def wait(self, timeout=120):
        """(exit code, output)"""
        code = self._child.wait(timeout)
        self._reader.join()
        return code, "".join(self.lines)

    def close(self):
        if self._child.poll() is None:
            subprocess.run(["runc", "kill", self.id, "KILL"], check=False, capture_output=True)
            self._child.wait()
        self._reader.join()
        subprocess.run(["runc", "delete", "--force", self.id], check=False, capture_output=True)


def tmpfs(path):
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]}


def bind(source, path, read_only=True):
    return {"destination": path, "type": "bind", "source": str(source), "options": ["rbind", "ro" if read_only else "rw"]}
