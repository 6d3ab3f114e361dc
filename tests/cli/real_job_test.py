"""The command among the real daemons."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

from command_helpers import BIN, LIMIT, Watched, children_of, descendants_of, read_until


def test_a_job_that_does_nothing_ends_well(real):
    run = real.start("run", "-n", 2, "-s", 2, "--", "sh", "-c", "echo ready")
    out, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    assert out.count("ready") == 2
    assert real.left_behind() == []


def test_an_unknown_setting_is_named(real):
    done = real.run("run", "--set", "thraeds=3", "--", "true")
    assert done.returncode != 0
    assert "BANDONEON_THRAEDS" in done.stderr and "did you mean BANDONEON_THREADS" in done.stderr


def start_idle_job(real, *more):
    """A job of two workers that have joined; its scheduler's address."""
    run = real.start("run", "-n", 2, "-s", 1, *more, "--", "sh", "-c",
                     f"mkfifo in.$RANK; exec {real.path} idle-worker 0<>in.$RANK")
    address = read_until(run.stderr, 1, "scheduler at")[-1].split()[-1]
    if not any("token" in str(argument) for argument in more):
        real.environment["BANDONEON_TOKEN_FILE"] = read_until(run.stderr, 1, "--token-file")[-1].split()[-1]
    read_until(run.stdout, 2, "ready")
    return run, address


def test_status_shows_every_node(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, address = start_idle_job(real, "--linger", "0s")
    table = real.run("status", "--scheduler", address)
    assert table.returncode == 0, table.stderr
    lines = table.stdout.splitlines()
    assert "running" in lines[0]
    assert "HELD" in lines[1].split()
    roles = sorted(line.split()[0] + line.split()[1] for line in lines[2:])
    assert roles == ["server0", "worker0", "worker1"]
    status = json.loads(real.run("status", "--scheduler", address, "--json").stdout)
    assert len(status["nodes"]) == 3
    held = {node["role"]: node.get("held") for node in status["nodes"]}
    assert held["worker"] is None and held["server"]["total"] == held["server"]["weights"] == 0
    run.terminate()
    run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + signal.SIGTERM


def test_status_shows_what_passed_through_the_stages_of_every_node(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, address = start_idle_job(real, "--linger", "0s", "--set", "stage-times=cpu",
                                  "--set", "heartbeat-interval=50ms")
    deadline = time.monotonic() + LIMIT
    rows = {}
    # Heartbeats tell of it: each worker has exchanged 4,096 bytes once.
    while len([stage for *_, stage in rows if stage in ("deliver", "reply")]) < 3:
        assert time.monotonic() < deadline, rows
        shown = real.run("status", "--scheduler", address, "--stages")
        assert shown.returncode == 0, shown.stderr
        lines = [line.split() for line in shown.stdout.partition("\nNODE")[2].splitlines()[1:]]
        rows = {tuple(words[:3]): words[3:] for words in lines}
    for rank in ("0", "1"):
        assert [stage for role, own, stage in rows if (role, own) == ("worker", rank)] == [
            "queue", "encode", "send", "wait", "decode_queue", "decode", "deliver"]
        assert rows["worker", rank, "encode"][0] == "1"
    assert [stage for role, _, stage in rows if role == "server"] == ["queue", "hold", "sum", "encode", "reply"]
    assert rows["server", "0", "sum"][0] == "2" and rows["server", "0", "encode"][0] == "1"
    assert float(rows["server", "0", "sum"][3]) >= 0 and rows["server", "0", "hold"][3] == "-"
    status = json.loads(real.run("status", "--scheduler", address, "--json").stdout)
    (server,) = [node for node in status["nodes"] if node["role"] == "server"]
    assert server["stages"]["sum"]["items"] == 2 and server["stages"]["sum"]["bytes"] == 8192
    assert server["stages"]["sum"]["cpu_ns"] > 0 and server["stages"]["rule"]["items"] == 0
    run.terminate()
    run.communicate(timeout=LIMIT)


def test_status_says_that_stages_are_not_counted(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, address = start_idle_job(real, "--linger", "0s", "--set", "stage-times=off")
    shown = real.run("status", "--scheduler", address, "--stages")
    assert shown.returncode == 0, shown.stderr
    assert "setting stage-times is off" in shown.stdout
    run.terminate()
    run.communicate(timeout=LIMIT)


def test_status_of_a_job_with_a_token_needs_the_token(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, address = start_idle_job(real, "--linger", "0s", "--set", "token=open sesame")
    refused = real.run("status", "--scheduler", address)
    assert refused.returncode == 1 and "no token" in refused.stderr and "say --token-file PATH" in refused.stderr
    wrong = real.run("status", "--scheduler", address, "--token", "open barley")
    assert wrong.returncode == 1 and "wrong token" in wrong.stderr and "--token-file PATH" not in wrong.stderr
    by_flag = real.run("status", "--scheduler", address, "--token", "open sesame")
    assert by_flag.returncode == 0, by_flag.stderr
    real.environment["BANDONEON_TOKEN"] = "open sesame"
    by_variable = real.run("status", "--scheduler", address)
    assert by_variable.returncode == 0, by_variable.stderr
    assert by_variable.stdout.count("worker") == by_flag.stdout.count("worker") == 2
    run.terminate()
    run.communicate(timeout=LIMIT)


def test_of_a_job_that_fills_ranks_are_not_known_yet(real, tmp_path):
    with contextlib.ExitStack() as running:
        def daemon(name, *flags):
            process = subprocess.Popen([BIN / name, *flags], env=real.environment, stderr=subprocess.PIPE, text=True)
            running.callback(process.communicate)
            running.callback(process.kill)
            return process

        scheduler = daemon("bandoneon-scheduler", f"--port-file={tmp_path}/port", "--workers=1", "--servers=2")
        read_until(scheduler.stderr, 1, "listens at port")
        address = f"127.0.0.1:{(tmp_path / 'port').read_text().strip()}"
        daemon("bandoneon-server", f"--scheduler={address}")
        read_until(scheduler.stderr, 1, "1 of 3 have joined")
        table = real.run("status", "--scheduler", address, "--stages").stdout
        assert re.search(r"^server  [?]  ", table, re.MULTILINE) and " -1 " not in table
        doctor = real.run("doctor", "--scheduler", address).stdout
        assert re.search(r"^ok +server [?] +tcp:", doctor, re.MULTILINE) and "server -1" not in doctor


def test_a_healthy_job_that_saves_refuses_nothing_and_says_little_at_its_end(real, tmp_path):
    """Of what a checkpoint asks for, most servers have little."""
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent("""
        import sys, torch
        import bandoneon.torch as bdn
        bdn.init()
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
        bdn.broadcast_parameters(model)
        optimizer = bdn.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), push="ef(onebit)", pull="ef(onebit)")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        bdn.save(sys.argv[1], {"model": model, "optimizer": optimizer})
        bdn.shutdown()
    """))
    run = real.start("run", "-n", 2, "-s", 1, "--", sys.executable, program, tmp_path / "saved")
    out, error = run.communicate(timeout=8 * LIMIT)  # It imports torch.
    assert run.returncode == 0, error
    (line,) = [line for line in (out + error).splitlines() if "in this job: " in line]
    counted = dict(part.split(" ", 1) for part in line.split("in this job: ")[1].split(", "))
    assert int(counted["pushes"]) >= 2 * 3 and counted["bytes_received"].endswith("B")
    assert "frames_refused" not in counted and len(line) < 350, line


def test_status_names_a_scheduler_that_is_not_there(real):
    done = real.run("status", "--scheduler", "127.0.0.1:1", "--timeout", "1s")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    done = real.run("status")
    assert done.returncode == 2 and "--scheduler" in done.stderr


def test_names_a_server_that_was_killed_and_leaves_nothing(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, _ = start_idle_job(real, "--linger", "0s")
    everybody = [Watched(pid) for pid in descendants_of(run.pid)]
    (guardian,) = children_of(run.pid)
    (server,) = [pid for pid in children_of(guardian) if "bandoneon-server" in program(pid)]
    os.kill(server, signal.SIGKILL)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + 9
    assert f"server 0 (pid {server}) was killed by signal 9" in error
    assert all(process.ends() for process in everybody)


def test_a_server_that_workers_cannot_reach_is_named_with_its_addresses(real, tmp_path):
    port_file = tmp_path / "port"
    scheduler = subprocess.Popen([BIN / "bandoneon-scheduler", f"--port-file={port_file}"],
                                 env=real.environment, stderr=subprocess.PIPE, text=True)
    real.started.append(scheduler)
    read_until(scheduler.stderr, 1, "listens at port")
    address = f"127.0.0.1:{port_file.read_text().strip()}"
    server = subprocess.Popen([BIN / "bandoneon-server", f"--scheduler={address}", "--listen=tcp://127.0.0.1:0",
                               "--advertise=tcp://127.0.0.1:1", "--rank=0"],
                              env=real.environment, stderr=subprocess.PIPE, text=True)
    real.started.append(server)
    said = read_until(server.stderr, 1, "only where something forwards")
    (listening,) = [line for line in said if "listening on" in line]
    listened = listening.split("listening on ")[1].split(",")[0]
    assert "workers connect to tcp://127.0.0.1:1" in listening
    # By shared memory it could.
    real.environment |= {"BANDONEON_SCHEDULER": address, "BANDONEON_JOIN_TIMEOUT": "7s",
                         "BANDONEON_TRANSPORT": "network"}
    worker = real.start("idle-worker")
    warning = read_until(worker.stderr, 1, "no answer so far")[-1]
    status = real.run("status", "--scheduler", address)
    assert f"tcp://127.0.0.1:1 (listens at {listened})" in status.stdout
    _, error = worker.communicate(timeout=LIMIT)
    assert worker.returncode == 1
    for line in (warning, error, scheduler.communicate(timeout=LIMIT)[1]):
        for fact in ("server 0 (node", "tcp://127.0.0.1:1", listened, "--advertise", "firewall"):
            assert fact in line, line


def test_two_jobs_on_one_host_do_not_meet(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    benches = [start_bench(real, "none") for _ in range(2)]
    for bench in benches:
        out, error = bench.communicate(timeout=2 * LIMIT)
        assert bench.returncode == 0, error
        assert json.loads(out)["workers"] == 2


def test_bench_pushpull_takes_the_transport_that_it_is_told(real):
    results = {}
    for transport in ("auto", "shm", "tcp", "ipc"):
        done = real.run("bench", "pushpull", "--bytes=65536", "--iters=2", "--warmup=1", "--json",
                        f"--transport={transport}")
        assert done.returncode == 0, done.stderr
        results[transport] = json.loads(done.stdout)
        assert results[transport]["transport"] == transport
    assert len({result["result_hash"] for result in results.values()}) == 1
    done = real.run("bench", "pushpull", "--transport=pigeon")
    assert done.returncode == 2 and "expected auto, shm, rdma, tcp or ipc" in done.stderr


def bench_over(real, *options):
    done = real.run("bench", "pushpull", "--workers=2", "--servers=2", "--tensors=4", "--bytes=1048576", "--iters=3",
                    "--warmup=1", "--push=ef(onebit)", "--pull=ef(onebit)", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_fabric_brings_the_bits_that_tcp_brings(real):
    tcp = bench_over(real, "--transport=tcp")
    fabric = bench_over(real, "--transport=rdma", "--provider=tcp;ofi_rxm")
    assert fabric["provider"] == "tcp;ofi_rxm"
    assert fabric["result_hash"] == tcp["result_hash"]


def test_a_fabric_that_is_not_there_is_an_error_that_says_what_is(real):
    done = real.run("bench", "pushpull", "--transport=rdma", "--provider=carrier-pigeon")
    assert done.returncode != 0
    assert "transport is rdma: no fabric provider 'carrier-pigeon'" in done.stderr and "tcp;ofi_rxm" in done.stderr
    done = real.run("bench", "pushpull", "--transport=rdma", "--provider=shm")
    assert done.returncode != 0
    assert "setting fabric-provider is shm" in done.stderr and "say transport=shm" in done.stderr
    done = real.run("bench", "pushpull", "--transport=rdma", "--provider=tcp;ofi_rxm", "--set",
                    "data-security=encrypted")
    assert done.returncode != 0 and "a fabric does not encrypt payloads" in done.stderr
    done = real.run("bench", "pushpull", "--transport=rdma", "--link=1gbit")
    assert done.returncode != 0 and "setting link is for a network, and transport is rdma" in done.stderr
    done = real.run("bench", "pushpull", "--provider=tcp;ofi_rxm")
    assert done.returncode == 2 and "--provider is for --transport rdma" in done.stderr


def test_auto_takes_the_fabric_that_it_is_told_of_where_it_may(real):
    plain = ["--set", "data-security=authenticated", "--set", "log-level=info"]
    done = real.run("bench", "pushpull", "--bytes=65536", "--iters=2", "--warmup=1", "--set",
                    "fabric-provider=tcp;ofi_rxm", *plain)
    assert done.returncode == 0 and "payloads go over the fabric tcp;ofi_rxm" in done.stderr, done.stderr
    done = real.run("bench", "pushpull", "--bytes=65536", "--iters=2", "--warmup=1", "--set",
                    "fabric-provider=carrier-pigeon", *plain)
    assert done.returncode == 0 and "payloads go over TCP: no fabric provider" in done.stderr, done.stderr


def test_shared_memory_that_is_insisted_on_is_an_error_where_it_cannot_be(real):
    done = real.run("bench", "pushpull", "--transport=shm", "--link=1gbit")
    assert done.returncode != 0 and "setting link is for a network, and transport is shm" in done.stderr


def test_no_reply_is_sent_twice_over_a_slow_link(real):
    # A tensor takes some 50 ms there, and a step ten times as long as who waits takes to ask again.
    done = real.run("bench", "pushpull", "--tensors=16", "--bytes=262144", "--iters=2", "--warmup=1", "--json",
                    "--transport=tcp", "--link=40mbit", "--set", "probe-interval=100ms")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    pulled_results = 2 * 16 * (262144 + 96)
    assert pulled_results <= result["bytes_pulled"] < 2 * pulled_results, "a few may have been asked for too early"


def test_bench_pushpull_fuses_small_tensors(real):
    results = {}
    for fuse in ((), ("--fuse",)):
        done = real.run("bench", "pushpull", "--tensors=40", "--bytes=16384", "--iters=2", "--warmup=1", "--json", *fuse)
        assert done.returncode == 0, done.stderr
        results[bool(fuse)] = json.loads(done.stdout)
    assert results[True]["result_hash"] == results[False]["result_hash"]
    assert results[False]["bytes_pushed"] == 2 * 40 * (16384 + 96)
    assert results[True]["bytes_pushed"] < 2 * (40 * (16384 + 4) + 96 + 1), "one frame, with the tensors' lengths"


def test_bench_pushpull_checks_and_reports(real):
    for codec, ratio in [("none", 1), ("ef(onebit(block=256))", 24)]:
        bench = start_bench(real, codec)
        out, error = bench.communicate(timeout=2 * LIMIT)
        assert bench.returncode == 0, error
        (line,) = out.splitlines()
        result = json.loads(line)
        assert result["push"] == codec and result["iters"] == 2
        assert result["gb_per_s_slowest"] <= result["gb_per_s_per_worker"] <= result["gb_per_s_fastest"]
        assert set(result["cpu_s_per_gb"]) == {"scheduler", "server", "worker", "host"}
        assert result["hosts"] == result["cpu_s_per_gb"]["host"] == 0
        assert all(value >= 0 for value in result["cpu_s_per_gb"].values())
        for counts in ("page_faults_per_step", "context_switches_per_step"):
            assert set(result[counts]) == {"server", "worker"}
            assert all(value >= 0 for value in result[counts].values())
        assert result["memcpy_gb_per_s"] > 0
        assert 0 < result["kernel_roof_slowest"] <= result["kernel_roof_gb_per_s"] <= result["kernel_roof_fastest"]
        share = result["gb_per_s_per_worker"] / result["kernel_roof_gb_per_s"]
        assert abs(result["share_of_roof"] - share) < 1e-9 * share
        assert result["kernel_roof_cpu_s_per_gb"] > 0
        assert 0 < result["step_us"]["median"] <= result["step_us"]["p99"]
        assert result["dense_bytes"] == 2 * 2 * 262144
        assert result["wire_bytes"] == result["bytes_pushed"] + result["bytes_pulled"]
        assert 0.9 * ratio < 2 * result["dense_bytes"] / result["wire_bytes"] <= 1.4 * ratio
        held = result["bytes_per_parameter"]["server_counted"]
        assert 0.6 * 4 / ratio < held["replies"] < 1.4 * 4 / ratio
        assert held["residuals"] == (0 if codec == "none" else 4)
        assert held["sums"] == held["waiting"] == 0, "every step has closed"
        assert held["held_most"] >= held["replies"] + held["residuals"]
        check_stages(result)


def test_bench_pushpull_sends_once_a_host(real):
    results = []
    for hosts in (0, 2):
        bench = start_bench(real, "none", workers=4, hosts=hosts)
        out, error = bench.communicate(timeout=2 * LIMIT)
        assert bench.returncode == 0, error
        results.append(json.loads(out))
    plain, through = results
    assert through["hosts"] == 2 and through["workers"] == 4
    assert through["cpu_s_per_gb"]["host"] > 0
    assert through["bytes_of_all_nodes"] == plain["bytes_of_all_nodes"] / 2
    assert through["stages"]["worker"]["encode"]["items"] == plain["stages"]["worker"]["encode"]["items"] / 2
    wrong = start_bench(real, "none", workers=4, hosts=3)
    _, error = wrong.communicate(timeout=LIMIT)
    assert wrong.returncode == 2 and "4 workers are not so many times anything" in error


def check_stages(result):
    """Of the timed part alone, without the warm-up."""
    worker, server = (result["stages"][role] for role in ("worker", "server"))
    exchanged = result["workers"] * result["dense_bytes"]
    assert worker["encode"]["bytes"] == worker["decode"]["bytes"] == server["sum"]["bytes"] == exchanged
    assert server["encode"]["bytes"] == result["dense_bytes"]
    items = worker["encode"]["items"]
    assert items % (result["workers"] * result["iters"]) == 0
    for stage in ("queue", "send", "wait", "decode_queue", "decode"):
        assert worker[stage]["items"] == items, stage
    for stage in ("queue", "hold", "sum", "reply"):
        assert server[stage]["items"] == items, stage
    assert server["encode"]["items"] * result["workers"] == items
    for there, here in (("send", "queue"), ("send", "hold"), ("wait", "reply")):
        assert worker[there]["bytes"] == server[here]["bytes"]
    assert all(stage["wall_ns"] > 0 for stage in (*worker.values(), *server.values()) if stage["items"])


def test_bench_pushpull_runs_an_update_rule(real):
    done = real.run("bench", "pushpull", "--tensors", 2, "--bytes", 262144, "--iters", 2, "--rule", "adamw", "--json")
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)["bytes_per_parameter"]["server_counted"]
    assert (held["weights"], held["moments"], held["replies"]) == (4, 8, 0)


def test_a_server_refuses_keys_that_cost_more_than_it_may_hold(real):
    done = real.run("bench", "pushpull", "--tensors", 2, "--bytes", 1048576, "--iters", 1, "--set", "max-bytes=1MiB")
    assert done.returncode != 0
    assert "cost this server 4194304 bytes of memory with 2 workers" in done.stderr
    assert "setting max-bytes allows 1048576" in done.stderr


def test_a_server_refuses_keys_whose_frames_are_longer_than_it_takes(real):
    done = real.run("bench", "pushpull", "--tensors", 1, "--bytes", 1048576, "--iters", 1, "--set", "max-frame-bytes=64KiB")
    assert done.returncode != 0
    assert "its frames take up to 1048576 bytes, setting max-frame-bytes allows 65536" in done.stderr


def test_bench_idle_reports_a_share_of_a_core(real):
    done = real.run("bench", "idle", "--seconds", 1, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["seconds"] >= 1
    # A thread that polls uses a whole core; what is allowed for ten seconds is in docs/journal/exchanges.md.
    assert 0 <= result["cores_total"] < 0.5


def start_bench(real, codec, workers=2, hosts=0) -> subprocess.Popen:
    return real.start("bench", "pushpull", "--workers", workers, "--hosts", hosts, "--servers", 1, "--tensors", 2, "--bytes", 262144,
                      "--push", codec, "--pull", codec, "--iters", 2, "--warmup", 1, "--json")


def program(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/exe")
