"""The files to deploy with: each parses, and every command line and setting in them is one that the programs know."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fdb_schema.serving.configuration import option_names, read_configuration
from mainspring.cli import app, service_commands
from mainspring.settings import check_file

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
SECTIONS = {
    "Unit": {"Description", "After", "Wants", "PartOf", "StartLimitIntervalSec"},
    "Service": {
        "Type", "User", "Group", "Environment", "EnvironmentFile", "ExecStart", "Restart", "RestartSec", "RestartSteps",
        "RestartMaxDelaySec", "KillMode", "TimeoutStopSec", "StateDirectory", "WorkingDirectory", "NoNewPrivileges",
        "ProtectSystem", "ProtectHome", "PrivateTmp", "LimitNOFILE", "StateDirectoryMode", "UMask", "CapabilityBoundingSet",
        "ProtectProc", "ProtectClock", "ProtectHostname", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
        "ProtectControlGroups", "PrivateDevices", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime",
        "RestrictSUIDSGID", "LockPersonality", "SystemCallArchitectures", "SystemCallFilter",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def parses(service: str, arguments: list[str]) -> bool:
    """Whether the program takes these arguments; raises what it says otherwise."""
    with COMMANDS[service].make_context(service, arguments) as context:
        return bool(context.params)


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.fixture(autouse=True)
def no_settings_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSPRING_CONFIG", raising=False)


def test_the_settings_are_known_to_every_service() -> None:
    found = check_file(DEPLOY / "mainspring.toml", service_commands())
    assert set(found.tables) == {"worker", "tender", "scheduler", "janitor"}
    assert found.shared["log_format"] == "json"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_each_unit_starts_a_service_with_options_it_has(path: Path) -> None:
    parsed = unit(path)
    assert set(parsed.sections()) == set(SECTIONS)
    for section, known in SECTIONS.items():
        assert set(parsed[section]) <= known
    program, *arguments = shlex.split(parsed["Service"]["ExecStart"])
    name = Path(program).name.removeprefix("mainspring-")
    assert path.name in (f"mainspring-{name}.service", f"mainspring-{name}@.service")
    assert parses(name, arguments)
    assert parsed["Service"]["Restart"] == "always"
    service = parsed["Service"]
    assert (service["StateDirectoryMode"], service["UMask"]) == ("0700", "0077"), "what it stores is its own"
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["CapabilityBoundingSet"]) == (
        "yes",
        "strict",
        "",
    )
    assert ("EnvironmentFile" in service) is (name != "worker"), "tasks could read it"
    own = "mainspring-worker" if name == "worker" else "mainspring"  # else tasks could read it in /proc
    assert service["User"] == service["Group"] == service["StateDirectory"] == own
    assert service["WorkingDirectory"] == f"/var/lib/{own}"
    assert ("dashboard.env" in service.get("EnvironmentFile", "")) is (name == "dashboard")
    assert parsed["Unit"]["PartOf"] == parsed["Install"]["WantedBy"] == "mainspring.target"


def test_the_target_wants_every_unit() -> None:
    wanted = unit(DEPLOY / "systemd" / "mainspring.target")["Unit"]["Wants"].split()
    names = {path.name for path in UNITS}
    assert {re.sub(r"@\d+", "@", name) for name in wanted} == names
    services = {path.name.removeprefix("mainspring-").removesuffix(".service").rstrip("@") for path in UNITS}
    assert services == {"worker", "tender", "scheduler", "janitor", "dashboard"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    for path in [*UNITS, DEPLOY / "systemd" / "mainspring.target"]:
        # The programs aren't installed where the unit says; that is all that may be wrong.
        text = re.sub(r"/opt/mainspring/bin/\S+", "/bin/true", path.read_text())
        (tmp_path / path.name.replace("@.", "@1.")).write_text(text)
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, check=False, timeout=60
    )
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert ours == []


def test_the_container_file_is_well_formed() -> None:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Containerfile").read_text())
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    words = [step[0] for step in steps]
    assert set(words) <= {
        "FROM", "COPY", "RUN", "ARG", "ADD", "ENV", "USER", "WORKDIR", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert words[0] == "FROM"
    last = dict(steps)
    assert last["USER"] == "10001"
    assert json.loads(last["ENTRYPOINT"]) == ["mainspring"]
    assert json.loads(last["CMD"]) == ["--help"]
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert words.index("USER") > max(at for at, word in enumerate(words) if word == "RUN")
    assert not re.search(r"(?i)(secret|password|token)\s*=", text)


DOCUMENTS = [one for one in yaml.safe_load_all((DEPLOY / "kubernetes" / "mainspring.yaml").read_text()) if one]
DEPLOYMENTS = [one for one in DOCUMENTS if one["kind"] == "Deployment"]
API = {
    "Namespace": "v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}


def test_every_object_has_its_api_and_the_namespace() -> None:
    assert DOCUMENTS[0]["kind"] == "Namespace"
    for one in DOCUMENTS:
        assert one["apiVersion"] == API[one["kind"]]
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == DOCUMENTS[0]["metadata"]["name"]
    names = [(one["kind"], one["metadata"]["name"]) for one in DOCUMENTS]
    assert len(set(names)) == len(names)


def test_the_configuration_on_kubernetes_is_known_to_every_service(tmp_path: Path) -> None:
    (config,) = [one for one in DOCUMENTS if one["kind"] == "ConfigMap"]
    file = tmp_path / "mainspring.toml"
    file.write_text(config["data"]["mainspring.toml"])
    found = check_file(file, service_commands())
    assert found.shared["db"] == "fdb:/etc/mainspring/fdb.cluster"
    assert "fdb.cluster" in config["data"]
    assert read_configuration(file).tables["worker"]["port"] == 7420


@pytest.mark.parametrize("one", DEPLOYMENTS, ids=lambda one: one["metadata"]["name"])
def test_each_deployment_runs_a_service_and_hangs_together(one: dict[str, Any]) -> None:
    spec, pod = one["spec"], one["spec"]["template"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    service, *arguments = container["args"]
    assert parses(service, arguments)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    secrets = {source["secretRef"]["name"] for source in container.get("envFrom", [])}
    assert secrets == {"worker": set(), "dashboard": {"mainspring", "dashboard"}}.get(service, {"mainspring"})
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    variables = {entry["name"] for entry in container["env"]}
    assert variables <= {
        "MAINSPRING_CONFIG",
        *(f"MAINSPRING_{service}_{name}".upper() for name in option_names(COMMANDS[service])),
    }
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in ("readinessProbe", "livenessProbe"):
        if probe in container:
            kind = "httpGet" if service == "worker" else "tcpSocket"
            assert container[probe][kind]["port"] in ports
    assert pod["terminationGracePeriodSeconds"] > 30
    assert container["resources"]["limits"]["memory"]


def test_a_service_on_kubernetes_finds_its_pods() -> None:
    for one in DOCUMENTS:
        if one["kind"] == "Service":
            chosen = [d for d in DEPLOYMENTS if d["spec"]["template"]["metadata"]["labels"] == one["spec"]["selector"]]
            (deployment,) = chosen
            ports = {p["name"] for p in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports


def test_nobody_reaches_a_pod_on_kubernetes_but_who_is_named() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in DOCUMENTS if one["kind"] == "NetworkPolicy"}
    (default,) = [spec for spec in policies.values() if spec["podSelector"] == {}]
    assert default["policyTypes"] == ["Ingress"]
    assert "ingress" not in default
    chosen = [spec["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name") for spec in policies.values()]
    assert sorted(filter(None, chosen)) == ["dashboard", "worker"]


def test_no_worker_is_known_by_an_address_that_nobody_can_dial() -> None:
    assert check_file(DEPLOY / "mainspring.toml", service_commands()).tables["worker"]["address"] not in (
        "0.0.0.0",
        "::",
    )


def test_the_container_takes_no_package_without_its_checksum() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert "sha256sum --check" in text
    assert text.index("sha256sum --check") < text.index("dpkg -i")
