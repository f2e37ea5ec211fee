"""`mainspring up`: settings, one cluster per directory, and what a person is told."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from fdb_schema import ClusterSpace, MainspringError, database_url, open_database
from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, fail, printable
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving.configuration import CONFIG_VARIABLE, configured_path
from fdb_schema.serving.logs import LogFormat, LogLevel
from fdb_schema.serving.private_files import make_private_directory, others_may_write, private_opener
from mainspring.settings import check_file, services_of
from mainspring.up.heaps import DEFAULT, absolute, own_heap
from mainspring.up.others import waiting_elsewhere
from mainspring.up.plan import OWN, S3_BUCKET, UpSettings, services
from mainspring.up.supervisor import Supervisor
from s3heap_tender import HeapStore
from s3heap_tender.cli.common import EndpointOption

NO_DASHBOARD: Final = (
    "the dashboard isn't installed here: add the package mainspring-dashboard of this release to this environment"
)


class AlreadyUpError(MainspringError):
    """Another `mainspring up` keeps its state in the same directory."""


def up(
    context: typer.Context,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes.")] = 2,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Tasks that a worker runs at once.", show_default="the cores are shared")
    ] = None,
    tenders: Annotated[int, typer.Option(min=0, help="Tender processes.")] = 1,
    schedulers: Annotated[int, typer.Option(min=0, help="Scheduler processes.")] = 1,
    janitors: Annotated[int, typer.Option(min=0, help="Janitor processes.")] = 1,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="What the scheduler runs for every task; without it, a task's payload names its function.",
            show_default=False,
        ),
    ] = None,
    dashboard: Annotated[
        bool | None, typer.Option("--dashboard/--no-dashboard", help="The dashboard.", show_default="where installed")
    ] = None,
    dashboard_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The dashboard's port; 0 takes any free one.", show_default="8420, or a free one"
        ),
    ] = None,
    s3: Annotated[
        bool, typer.Option("--s3", help="Keep the heap on a development S3 server (SeaweedFS) instead of in files.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="MAINSPRING_HEAP",
            metavar="URL",
            help="The heap: s3://BUCKET/PREFIX or file:DIRECTORY.",
            show_default="file:./heap, or file:./heap-CLUSTER where another cluster has that",
        ),
    ] = None,
    endpoint_url: EndpointOption = None,
    state: Annotated[Path, typer.Option(metavar="DIR", help="Where logs, spilled results and up.json go.")] = Path(
        "./.mainspring-up"
    ),
    grace: Annotated[float, typer.Option(min=0, help="Seconds that tasks have to finish when it stops.")] = 10.0,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    otlp_endpoint: str | None = None,
    config: Any = None,
    log_format: LogFormat = LogFormat.text,
    log_level: LogLevel = LogLevel.info,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C: workers, tender, scheduler, janitor, on an embedded database.

    A service that ends is started again, after pauses that grow. Everything stops with this command.
    """
    config = config or configured_path()
    if config is not None:
        check_file(config, services_of(context.find_root().command))
    url = _shareable(database_url(db))
    folder = state.expanduser().resolve()
    store = None if store is None else absolute(store)
    heap = store or (f"s3://{S3_BUCKET}/{cluster}" if s3 else absolute(DEFAULT))
    if store is not None and not heap.startswith("s3:"):
        HeapStore(heap, probe=False).close()  # found unusable here, and not by each service again and again
    share = slots or max(1, len(os.sched_getaffinity(0)) // max(1, workers))
    settings = UpSettings(
        url, cluster, heap, folder, workers, _slots(slots, share, config), tenders, schedulers, janitors,
        _dashboard(dashboard), run, endpoint_url, None, config, log_format.value, log_level.value, otlp_endpoint, grace, _own(context, config),
        dashboard_port, os.environ.get("CUDA_VISIBLE_DEVICES"),
    )  # fmt: skip
    _check_state(make_private_directory(folder))
    with _alone(folder):
        if s3:
            settings = _with_s3(settings)
            typer.echo("starting a development S3 server; the first time it is installed, which takes a minute or two")
        os.environ.pop(CONFIG_VARIABLE, None)
        ClusterSpace(cluster)
        database = open_database(url)  # made, or found unusable, here and not five times below
        for line in waiting_elsewhere(database, cluster):
            typer.echo(printable(line))
        if heap.startswith("file:"):
            settings = replace(settings, store=own_heap(database, cluster, store))
        _supervise(settings)


def _check_state(folder: Path) -> None:
    """Refuse a directory that others may write to: links that they put there would be followed by who writes logs."""
    found = folder.stat()
    if others_may_write(found):
        whose = f"of user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
        fail(f"--state {folder} is a directory that others may write to ({whose}): give one of your own", EXIT_USAGE)


def _supervise(settings: UpSettings) -> None:
    from rich.console import Console

    console = Console(stderr=False, highlight=False, markup=False, emoji=False, soft_wrap=True)
    specs = services(settings)
    width = max((len(spec.name) for spec in specs), default=0)
    facts = {"db": settings.url, "cluster": settings.cluster, "store": settings.store}

    def tell(text: str) -> None:
        # A terminal that went away, or a pipe that nobody reads (there rich exits), ends no cluster.
        with suppress(OSError, SystemExit):
            console.print(printable(text))

    def say(name: str, text: str) -> None:
        tell(f"{name:<{width}}  {text}")

    supervisor = Supervisor(specs, settings.state, say, facts)

    def ready() -> None:
        tell(_what_is_where(settings, supervisor))

    tell(f"starting {', '.join(spec.name for spec in specs)} …")
    supervisor.run(ready)
    tell("stopped: nothing is left running; the database and the heap stay where they are")


def _what_is_where(settings: UpSettings, supervisor: Supervisor) -> str:
    running = ", ".join(f"{s.spec.name} ({s.pid})" for s in supervisor.services)
    shown = {
        "database": settings.url,
        "cluster": settings.cluster,
        "heap": settings.store + (f" at {settings.endpoint_url}" if settings.endpoint_url else ""),
        "processes": running,
        "logs": f"{settings.state}/logs/",
    }
    lines = [f"  {name:<10} {value}" for name, value in shown.items()]
    for service in supervisor.services:
        if service.spec.name == "dashboard":
            said = service.said or f"not running; its log says why: {service.log}"
            lines.append(f"  {'dashboard':<10} {said}")
    export = (
        f"export MAINSPRING_DB={settings.url} MAINSPRING_CLUSTER={settings.cluster} MAINSPRING_HEAP={settings.store}"
    )
    if settings.endpoint_url:
        export += f" AWS_ENDPOINT_URL={settings.endpoint_url}"
    return "\n".join(["ready", *lines, "  in another terminal:", f"    {export}", "    mainspring status"])


def _shareable(url: str) -> str:
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        fail("a memory: database lives in one process: give --db embedded:PATH or fdb:", EXIT_USAGE)
    return f"embedded:{Path(rest).expanduser().resolve()}" if scheme == "embedded" and rest else url


def _slots(given: int | None, share: int, config: Path | None) -> int | None:
    """`--slots` of the workers; None leaves them to the [worker] table of the file."""
    from fdb_schema.serving.configuration import read_configuration

    if given is None and "MAINSPRING_WORKER_SLOTS" in os.environ:
        return None
    if given is None and "slots" in read_configuration(config).tables.get("worker", {}):
        return None
    return share


def _own(context: typer.Context, config: Path | None) -> dict[str, dict[str, Any]]:
    """What single services are told by their own tables or variables, of what `up` tells all unless it was given itself."""
    from fdb_schema.serving.configuration import read_configuration

    sources = {key: getattr(context.get_parameter_source(key), "name", "") for key in OWN}
    free = {key for key, source in sources.items() if source not in ("COMMANDLINE", "ENVIRONMENT")}
    tables = read_configuration(config).tables
    found = {
        kind: {key: value for key, value in tables.get(kind, {}).items() if key in free}
        for kind in ("worker", "tender", "janitor", "scheduler", "dashboard")
    }
    for kind in ("worker", "scheduler"):
        variable = os.environ.get(f"MAINSPRING_{kind.upper()}_GRACE")
        if variable and "grace" in free:
            found[kind]["grace"] = variable
    return found


def _dashboard(wanted: bool | None) -> bool:
    installed = importlib.util.find_spec("mainspring_dashboard") is not None
    if wanted and not installed:
        fail(NO_DASHBOARD, EXIT_USAGE)
    return installed if wanted is None else wanted


def _with_s3(settings: UpSettings) -> UpSettings:
    from s3heap_tender.devserver import ACCESS_KEY, SECRET_KEY, _free_ports, credentials
    from s3heap_tender.errors import NO_SDK

    if importlib.util.find_spec("boto3") is None:
        fail(f"--s3: {NO_SDK}", EXIT_USAGE)
    if not settings.store.startswith("s3:"):
        fail(f"--s3 keeps the heap on the development server, and --store is {settings.store}: give one", EXIT_USAGE)
    if credentials() is None:  # else the server takes those, which the user's own tasks may need
        os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    os.environ.setdefault("AWS_REGION", "us-east-1")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    (port,) = _free_ports(1, first=None)
    return replace(settings, s3_port=port, endpoint_url=f"http://127.0.0.1:{port}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w", opener=private_opener) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AlreadyUpError(
                f"another `mainspring up` runs with its state in {folder}: stop it, or give another --state"
            ) from None
        os.set_inheritable(lock.fileno(), False)
        yield


__all__ = ["AlreadyUpError", "sys", "up"]
