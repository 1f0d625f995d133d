"""The files for containers, Kubernetes, SLURM, TLS and Grafana: each checked as far as it can be without them."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from fedactors.cli.parsers import parsers
from fedactors.messages.ledger import Usage
from tests.runtime.hosts import Hosts, whether_possible

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
SCRIPTS = ("slurm.sh", "tls.sh")


def test_the_image_has_the_wheel_of_this_version_and_nothing_else_of_the_repository():
    text = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.*)$", text, re.M)
    assert copied == ["dist/fedactors-*.whl /tmp/wheels/"]
    assert (ROOT / ".dockerignore").read_text().split() == ["*", "!dist/fedactors-*.whl"]
    assert f"fedactors:{VERSION}" in text
    assert text.index("USER fedactors") < text.index("ENTRYPOINT"), "it does not run as root"
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert re.search(r"^FROM python:3\.11", text, re.M)
    assert supported.startswith(">=3.11")


def test_the_image_serves_a_site_whose_folder_is_a_volume():
    """No builder is needed to see that the site's user owns the place, and that the page's commands are ours."""
    text = (DEPLOY / "Dockerfile").read_text()
    made = re.search(
        r"useradd .*--uid 1000 (\w+).*?install --directory --owner \1 --group \1 --mode 700 /site$", text, re.M | re.S
    )
    assert made is not None
    assert made.end() < text.index(f"USER {made.group(1)}"), "made by root, for the user"
    said = re.sub(r"\\\n#?\s*", "", text)
    words = re.findall(rf"fedactors(?::{re.escape(VERSION)})? (site .*--folder /site.*)$", said, re.M)
    asked = [parsers()[0].parse_args(line.split()) for line in words]
    assert [(args.action, args.folder) for args in asked] == [
        ("init", "/site"),
        ("start", "/site"),
        ("pending", "/site"),
    ]
    assert asked[1].format == "json"
    start = next(line for line in said.splitlines() if "site start" in line)
    assert f"--publish {asked[0].listen.rpartition(':')[2]}:" in start
    for line in words:
        assert line in re.sub(r"\\\n\s*", "", PAGE), line


def test_the_unit_starts_a_site_and_systemd_takes_it(tmp_path):
    text = (DEPLOY / "fedactors-site.service").read_text()
    command = re.search(r"^ExecStart=(\S+) (.*)$", text, re.M)
    assert command is not None
    args = parsers()[0].parse_args(command.group(2).split())
    assert (args.command, args.action, args.format) == ("site", "start", "json")
    assert args.folder.startswith(re.search(r"^ReadWritePaths=(\S+)$", text, re.M).group(1))
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd here")
    unit = tmp_path / "fedactors-site.service"
    unit.write_text(text.replace(command.group(1), sys.executable))
    done = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifest_is_a_cluster_with_a_host_for_each_party_of_the_page():
    cluster, policy = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    labels = set()
    for group in spec["workerGroupSpecs"]:
        # the operator puts the parameter on a shell's command line: a JSON text in quotes of its own
        (label,) = json.loads(json.loads(group["rayStartParams"]["resources"]))
        labels.add(label)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    placement = re.search(r"--placement (\S+)", (DEPLOY / "kuberay.yaml").read_text())
    assert placement is not None
    assert {pair.split("=")[1] for pair in placement.group(1).split(",")} == labels
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == f"fedactors:{VERSION}"
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        assert environment["RAY_AUTH_MODE"] == "token"
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert str(Path(environment["RAY_AUTH_TOKEN_PATH"]).parent) in mounts
    name = cluster["metadata"]["name"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": name}
    assert policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == {"ray.io/cluster": name}


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_parse(script):
    path = DEPLOY / script
    assert path.stat().st_mode & 0o100, "it can be executed"
    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_certificates_are_good_for_their_host_and_no_other(tmp_path):
    subprocess.run([DEPLOY / "tls.sh", tmp_path / "tls", "10.0.0.1", "shop.example"], check=True, capture_output=True)
    folder = tmp_path / "tls"

    def verify(*words: str) -> int:
        command = ["openssl", "verify", "-CAfile", str(folder / "ca.crt"), *words]
        return subprocess.run(command, capture_output=True).returncode

    assert verify("-verify_ip", "10.0.0.1", str(folder / "10.0.0.1.crt")) == 0
    assert verify("-verify_hostname", "shop.example", str(folder / "shop.example.crt")) == 0
    assert verify("-verify_ip", "10.0.0.2", str(folder / "10.0.0.1.crt")) != 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*.key"))


def test_the_dashboard_shows_the_metrics_that_runs_export_and_no_others():
    from fedactors.runtime.ray.runtime import RunGauges

    gauges = RunGauges(0)
    used = Usage(
        messages=1,
        bytes=1,
        header_bytes=0,
        seconds=1.0,
        wall_seconds=1.0,
        cpu_utilisation=0.5,
        idle_seconds=0.1,
        price=0.0,
    )
    gauges.update(1, {"auc": 0.5}, used)
    exported = {f"ray_{gauge.info['name']}" for gauge in gauges._gauges.values()}
    board = json.loads((DEPLOY / "grafana.json").read_text())
    shown = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            found = re.findall(r"ray_fedactors_\w+(?:\.\*)?", target["expr"])
            assert found, target
            shown.update(found)
    matched = {name: {one for one in exported if re.fullmatch(name, one)} for name in shown}
    assert all(matched.values()), f"no run exports {[name for name, ones in matched.items() if not ones]}"
    assert set.union(*matched.values()) == exported


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(whether_possible() is not None, reason=str(whether_possible()))
def test_a_run_on_two_hosts_that_encrypt(tmp_path):
    """A run on both hosts gives its metrics; a driver that does not encrypt is told so at once."""
    hosts = Hosts(tmp_path, [{"bank": 1}, {"shop": 1}], tls=True)
    try:
        words = ["python", "-m", "fedactors", "run", "pubsub-vfl", "--smoke", "--quiet", "--format", "json"]
        words += ["--placement", "active=bank,passive=shop", "--address", f"{hosts.net}.1:6379"]
        done = hosts.call(0, *words, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout.splitlines()[-1])["metrics"]["test/auc"] > 0.5
        plain = hosts.call(0, *words, check=False, RAY_USE_TLS="0")
        assert (plain.returncode, "one that encrypts" in plain.stderr) == (2, True), plain.stderr
    finally:
        hosts.stop()


@pytest.mark.docs
def test_the_page_names_every_file():
    for path in DEPLOY.iterdir():
        assert f"deploy/{path.name}" in PAGE, path.name
