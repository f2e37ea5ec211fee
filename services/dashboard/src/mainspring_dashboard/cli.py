"""The command `mainspring-dashboard`."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from typing import Annotated, NoReturn

import typer

from fdb_schema.cli import DEFAULT_CLUSTER, ClusterOption, DbOption, fail, run_app
from fdb_schema.errors import EXIT_USAGE
from fdb_schema.serving.metrics import is_loopback
from fdb_schema.serving.service import service_app
from s3heap_tender.cli.common import EndpointOption

DEFAULT_PORT = 8420


def dashboard(
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    address: Annotated[str, typer.Option(help="Address to serve on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to serve on; 0 takes any free one.",
            show_default=f"{DEFAULT_PORT}, or a free one where that is taken",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="MAINSPRING_DASHBOARD_TOKEN",
            help="Who shows it may look. Not needed on loopback; elsewhere one is made and printed if none is given.",
            show_envvar=True,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="MAINSPRING_HEAP",
            metavar="URL",
            help="The heap, s3://BUCKET/PREFIX or file:DIRECTORY, for its buckets.",
        ),
    ] = None,
    endpoint_url: EndpointOption = None,
    actions: Annotated[
        bool,
        typer.Option(
            "--actions/--no-actions",
            envvar="MAINSPRING_DASHBOARD_ACTIONS",
            help="Let who has the token cancel and retry futures, release leases, pause and run heap tasks; needs a token.",
        ),
    ] = False,
) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C. Prints its address when it is ready; it only reads, but for --actions."""
    import uvicorn

    from mainspring_dashboard.app import create_app
    from mainspring_dashboard.doctor import Doctor
    from mainspring_dashboard.heap import HeapView
    from mainspring_dashboard.reading import Cluster
    from mainspring_dashboard.serving import limits

    if token is not None and len(token) < 16:
        fail("--token is shorter than 16 characters: anybody could guess it", EXIT_USAGE)
    if token is not None and not (token.isascii() and token.isprintable()):
        fail("--token has characters that no header can carry: take letters, digits and signs of ASCII", EXIT_USAGE)
    if actions and token is None and is_loopback(address):
        fail("--actions needs a --token: without one whoever reaches the port could act", EXIT_USAGE)
    made = token is None and not is_loopback(address)
    shown = secrets.token_urlsafe(24) if made else token
    listening = _listen(address, port)
    reading = Cluster(db, cluster)
    heap = HeapView(reading.db, cluster, store, endpoint_url)
    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{listening.getsockname()[1]}/"

    class Server(uvicorn.Server):
        """Says when it is ready, which uvicorn's log says in a form of its own."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            # A token that the user chose is known to the user and stays out of the output.
            with contextlib.suppress(OSError):  # a full disk, or nobody reads any more
                typer.echo(f"dashboard ready at {url}{f'?token={shown}' if made else ''}")

    # The access log would hold tokens; streams end by themselves when the application closes.
    config = uvicorn.Config(
        create_app(reading, token=shown, heap=heap, doctor=Doctor(reading.db, cluster), actions=actions),
        access_log=False,
        log_config=None,  # its records are logged as ours, which escape what strangers send
        log_level="warning",
        timeout_graceful_shutdown=5,
        **limits(),
    )
    try:
        Server(config).run(sockets=[listening])
    finally:
        heap.close()
        reading.close()
        listening.close()


app = service_app("mainspring-dashboard", "dashboard", dashboard)


def _listen(address: str, port: int | None) -> socket.socket:
    """A listening socket; without a port, on the default one or a free one.

    A place that was asked for and can't be served on is a usage error that says why.
    """
    try:
        if port is None:
            try:
                return _bound(address, DEFAULT_PORT)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        return _bound(address, port or 0)
    except OSError as error:
        place = f"{address}:{DEFAULT_PORT if port is None else port}"
        fail(f"can't serve on {place}: {error.strerror or error}; give another --address or --port", EXIT_USAGE)


def _bound(address: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(found[0], socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(found[4])
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def main() -> NoReturn:
    """Run the command."""
    run_app(app)


if __name__ == "__main__":
    main()
