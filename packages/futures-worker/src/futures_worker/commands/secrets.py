"""`futures-worker secret`: what the cluster's processes prove to one another that they know; the secrets are never shown."""

from __future__ import annotations

from typing import Annotated

import typer

from fdb_schema.cli import (
    DEFAULT_CLUSTER,
    ClusterOption,
    CommandApp,
    DbOption,
    DryRunOption,
    JsonOption,
    print_json,
    say,
)
from futures_worker.commands.opening import look_into
from futures_worker.objects.store_secret import (
    StoredSecrets,
    retire_secrets,
    rotate_secret,
    set_encryption,
    stored_secrets,
)
from futures_worker.ports.handshake import secret_id
from idempotent_txn import run

secret_app = CommandApp(help="The cluster's secret: change it without a stop.", no_args_is_help=True)


@secret_app.command()
def show(db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """Which secrets are accepted, by their ids, the newest first, and whether connections are encrypted."""
    database, space = look_into(db, cluster)
    _tell(run(database, stored_secrets, space, strategy="off"), as_json)


@secret_app.command()
def rotate(db: DbOption = None, cluster: ClusterOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """Make a fresh secret, to be proved from now on; the one before it is accepted until `retire`."""
    database, space = look_into(db, cluster)
    _tell(run(database, rotate_secret, space), as_json)


@secret_app.command()
def retire(
    dry_run: DryRunOption = False,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Accept the newest secret only. Workers learn of it within half a minute."""
    database, space = look_into(db, cluster)
    if dry_run:
        stored = run(database, stored_secrets, space, strategy="off")
        _tell(stored, as_json)
        say(f"{len(stored.secrets[1:])} of {len(stored.secrets)} secrets would be accepted no more", err=True)
        return
    _tell(run(database, retire_secrets, space), as_json)


@secret_app.command()
def encrypt(
    on: Annotated[bool, typer.Option("--on/--off", help="Whether connections between processes are encrypted.")] = True,
    db: DbOption = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Encrypt the connections that are opened from now on. Every process needs futures-worker[encryption]."""
    database, space = look_into(db, cluster)
    _tell(run(database, set_encryption, space, on), as_json)


def _tell(stored: StoredSecrets, as_json: bool) -> None:
    ids = [secret_id(one).hex() for one in stored.secrets]
    if as_json:
        print_json({"secrets": ids, "encrypted": stored.encrypted})
        return
    if not ids:
        say("no secret yet: the first worker makes one", err=True)
    for place, one in enumerate(ids):
        say(f"{one}  {'proved' if place == 0 else 'accepted'}")
    say(f"connections are {'encrypted' if stored.encrypted else 'authenticated, not encrypted'}")
