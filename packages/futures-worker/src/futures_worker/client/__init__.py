"""The client side: submit functions as futures, wait for them, get their results."""

from futures_worker.client.actors import Actor
from futures_worker.client.ambient import cancel_requested, current_client, current_future_id
from futures_worker.client.basis.diagnosis import LargeArgumentWarning, LongWaitWarning
from futures_worker.client.basis.options import submit_options
from futures_worker.client.bound import BoundOptions
from futures_worker.client.client import Client
from futures_worker.client.dataset import Dataset
from futures_worker.client.future import Future
from futures_worker.client.operating import ClientOperations
from futures_worker.client.outcome import Status
from futures_worker.client.session.forwarding import OutputForwarding, OutputLine
from futures_worker.client.shell import WorkerPoolShell
from futures_worker.client.streaming import ResultStream
from futures_worker.client.waiting.completed import AsCompleted, as_completed
from futures_worker.client.waiting.gathering import gather
from futures_worker.client.waiting.waits import DoneAndNotDone, wait
from futures_worker.operations.rows import FutureRow, WorkerRow

__all__ = [
    "Actor",
    "AsCompleted",
    "BoundOptions",
    "Client",
    "ClientOperations",
    "Dataset",
    "DoneAndNotDone",
    "Future",
    "FutureRow",
    "LargeArgumentWarning",
    "LongWaitWarning",
    "OutputForwarding",
    "OutputLine",
    "ResultStream",
    "Status",
    "WorkerPoolShell",
    "WorkerRow",
    "as_completed",
    "cancel_requested",
    "current_client",
    "current_future_id",
    "gather",
    "submit_options",
    "wait",
]
