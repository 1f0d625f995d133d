"""The files for containers, Kubernetes, SLURM, TLS and Grafana: each checked as far as it can be without them."""

import importlib.util
import json
import os
import re
import shlex
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


def test_the_conda_environment_has_the_packages_of_this_version():
    called = {
        "ray[default]": "ray-default", "torch": "pytorch", "msgpack": "msgpack-python", "duckdb": "python-duckdb",
        "matplotlib": "matplotlib-base", "prometheus-client": "prometheus_client", "safetensors": "python-safetensors",
    }  # fmt: skip
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = dict(re.findall(r"^([\w\[\]-]+)(.*)$", "\n".join(project["dependencies"]), re.M))
    made = yaml.safe_load((DEPLOY / "environment.yml").read_text())["dependencies"]
    (by_pip,) = (one["pip"] for one in made if isinstance(one, dict))
    found = dict(one.partition(" ")[::2] for one in made if isinstance(one, str))
    assert found.pop("python") == project["requires-python"]
    assert by_pip == [f"openmined-psi{asked.pop('openmined-psi')}", "-e .."]
    assert found == {"pip": "", **{called.get(name, name): version for name, version in asked.items()}}


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


# --- a site under Compose and on Kubernetes ---

MANIFESTS = sorted(path for path in DEPLOY.rglob("*.yaml") if path.name != "kuberay.yaml")
STYLE = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"


def linter(module: str) -> list[str]:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module} here: pip install 'fedactors[dev]'")
    return [sys.executable, "-m", module]


def objects() -> dict[str, dict]:
    """What there is on the cluster, by kind."""
    texts = [(DEPLOY / "kubernetes" / name).read_text() for name in ("site.yaml", "network.yaml")]
    return {found["kind"]: found for text in texts for found in yaml.safe_load_all(text)}


def pod() -> dict:
    return objects()["StatefulSet"]["spec"]["template"]["spec"]


def unit() -> dict[str, str]:
    text = (DEPLOY / "fedactors-site.service").read_text()
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Z]\w+=", line))


@pytest.mark.parametrize("path", [*MANIFESTS, DEPLOY / "kuberay.yaml"], ids=lambda path: path.stem)
def test_yaml_passes_its_linter(path):
    done = subprocess.run([*linter("yamllint"), "--strict", "-d", STYLE, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_compose_takes_the_file():
    file = str(DEPLOY / "compose.yaml")
    words = [*linter("check_jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*words, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    wrong = yaml.safe_load(Path(file).read_text())
    wrong["services"]["site"]["stop_grace"] = "30s"
    done = subprocess.run([*words, "-"], input=json.dumps(wrong), capture_output=True, text=True)
    assert "stop_grace" in done.stdout, "it sees what there is not"


@pytest.mark.parametrize("name", ["ci", "release"])
def test_the_workflows_are_of_the_schema(name):
    text = (DEPLOY.parent / ".github" / "workflows" / f"{name}.yml").read_text()
    words = [
        *linter("check_jsonschema"),
        "--builtin-schema",
        "vendor.github-workflows",
        "--default-filetype",
        "yaml",
        "-",
    ]
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    done = subprocess.run(words, input=text.replace("runs-on:", "runs_on:"), capture_output=True, text=True)
    assert done.returncode == 1, "it sees what there is not"
    # a release runs what every change runs, and publishes what was checked
    for needed in ("make lint docs-check", "twine check --strict", "check-wheel-contents") if name == "release" else ():
        assert needed in text


@pytest.mark.parametrize("kind", ["StatefulSet", "Service", "NetworkPolicy"])
def test_kubernetes_takes_the_objects(kind):
    linter("kubernetes_validate")
    import kubernetes_validate

    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(objects()[kind], version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**objects()[kind], "specs": {}}, version, strict=True)


def test_kustomize_renders_the_folder():
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("no kubectl here")
    done = subprocess.run([kubectl, "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rendered = {found["kind"]: found for found in yaml.safe_load_all(done.stdout)}
    assert rendered.keys() == objects().keys() | {"ConfigMap"}
    assert rendered["ConfigMap"]["data"] == {"name": "bank"}
    spec = rendered["StatefulSet"]["spec"]["template"]["spec"]
    containers = [*spec["initContainers"], *spec["containers"]]
    assert {one["image"] for one in containers} == {f"fedactors:{VERSION}"}
    names = {entry["valueFrom"]["configMapKeyRef"]["name"] for one in containers for entry in one.get("env", ())
             if "configMapKeyRef" in entry.get("valueFrom", {})}  # fmt: skip
    assert names == {rendered["ConfigMap"]["metadata"]["name"]}


def test_a_site_has_the_same_command_limits_and_secret_wherever_it_is_kept():
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["site"]
    systemd, spec = unit(), pod()
    (container,) = spec["containers"]
    word = shlex.split(systemd["ExecStart"])[1:]
    kept = [part.replace("/var/lib/fedactors/site", "/site") for part in word]
    assert kept == service["command"] == container["args"]
    assert service["image"] == f"fedactors:{VERSION}"
    assert service["restart"] == systemd["Restart"]
    assert int(service["stop_grace_period"][:-1]) == int(systemd["TimeoutStopSec"])
    assert spec["terminationGracePeriodSeconds"] == int(systemd["TimeoutStopSec"])
    limits = service["deploy"]["resources"]["limits"]
    memory = container["resources"]["limits"]["memory"]
    assert limits["memory"].upper() == systemd["MemoryMax"] == memory.removesuffix("i")
    assert str(limits["pids"]) == systemd["TasksMax"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    for pair in shlex.split(systemd["Environment"]):
        name, value = pair.split("=")
        assert service["environment"][name] == environment[name] == value
    assert "FEDACTORS_KEY_PASSPHRASE" in service["environment"].keys() & environment.keys()
    assert "FEDACTORS_KEY_PASSPHRASE" in (DEPLOY / "fedactors-site.service").read_text()


def test_a_site_in_a_container_may_no_more_than_the_unit():
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["site"]
    assert unit()["NoNewPrivileges"] == "yes"
    assert "no-new-privileges:true" in service["security_opt"]
    assert unit()["CapabilityBoundingSet"] == ""
    assert (service["cap_drop"], service["read_only"], service["user"]) == (["ALL"], True, "1000:1000")
    writable = [one for one in service["volumes"] if isinstance(one, str) or not one.get("read_only")]
    assert writable == ["site:/site"]
    spec = pod()
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch", "the key is its owner's alone"
    assert not spec["automountServiceAccountToken"]
    volumes = {one["name"] for one in spec["volumes"]} | {
        one["metadata"]["name"] for one in objects()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    }
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert "memory" in container["resources"]["limits"]
    assert objects()["StatefulSet"]["spec"]["replicas"] == 1
    (rule,) = objects()["NetworkPolicy"]["spec"]["ingress"]
    (port,) = spec["containers"][0]["ports"]
    assert [one["port"] for one in rule["ports"]] == [port["containerPort"]] == [7443]
    assert objects()["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]


@pytest.mark.slow
def test_the_pod_makes_its_key_once_and_waits_for_the_federation(tmp_path):
    """The shell commands of the init containers, really run, in a folder of this machine."""
    site, program = tmp_path / "site", tmp_path / "bin" / "fedactors"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedactors "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "SITE": "bank", "PATH": f"{program.parent}:{os.environ['PATH']}"}
    environment |= {"PYTHONPATH": str(ROOT), "FEDACTORS_KEY_PASSPHRASE": "a long passphrase"}
    key, wait = (
        [*one["command"], re.sub("(?<= )/site(?=[ /])", str(site), one["args"][0])] for one in pod()["initContainers"]
    )
    for _ in range(2):
        subprocess.run(key, check=True, env=environment, capture_output=True, timeout=60)
    made = (site / "key.pem").read_bytes()
    assert b"ENCRYPTED" in made
    subprocess.run(key, check=True, env=environment, capture_output=True, timeout=60)
    assert (site / "key.pem").read_bytes() == made
    waiting = subprocess.Popen(wait, env=environment)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1)
    (site / "federation.toml").write_text("x")
    assert waiting.wait(10) == 0


@pytest.mark.parametrize("file", ["compose.yaml", "kubernetes/kustomization.yaml"])
def test_commands_of_the_files_are_ours_and_on_the_page(file):
    lines = [line[4:] for line in (DEPLOY / file).read_text().splitlines() if line.startswith("#   ")]
    assert len(lines) >= 5
    for line in lines:
        assert line.split("   #")[0].strip() in PAGE, line
        if found := re.search(r"(?:run --rm site|fedactors) (site .*)", line):
            args = parsers()[0].parse_args(shlex.split(found[1]))
            assert (args.command, args.folder) == ("site", "/site")


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
