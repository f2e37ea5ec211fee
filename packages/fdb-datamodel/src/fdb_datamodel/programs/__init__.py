"""Programs: futures that ask for things in a fixed order, each of which is recorded once and found again by later attempts.

    programs  ('all', id)                         → when it was submitted: every program that there is
    programs  (id, 'request', n)                  → the n-th request: what was asked, and what it got
    programs  (id, 'value', n, part)              → its value, where that is too large for the row
    programs  (id, 'event', name, versionstamp)   → sent to it, and not taken yet
    programs  (id, 'published', name)             → what it published last under a name
    programs  (id, 'cancel')                      → it is to end: its body is told by its next request
    programs  (id, 'charged')                     → requests there were when an attempt was charged last

Requests are written under the claim of the attempt that makes them, one transaction each, and that transaction may do what was
asked as well: submit a future, take an event, run a step. So each happens once, however many attempts there are. How a program
leaves and comes back is in `fdb_datamodel.lifecycle.programs`.

Rows of a request are the form that a later attempt has to ask for again: `kind` and `name`.
"""

from fdb_datamodel.programs.control import (
    cancel_program,
    deliver_cancel,
    list_programs,
    outcome,
    publish,
    read_published,
    resume_program,
    send_event,
    take_event,
)
from fdb_datamodel.programs.requests import (
    CANCEL,
    PAGE,
    PART_BYTES,
    PARTS_AT_ONCE,
    VALUE_LIMIT,
    ProgramClaim,
    Request,
    clear_value,
    find_request,
    last_requests,
    read_requests,
    read_value,
    record_following,
    record_request,
    write_parts,
)
from fdb_datamodel.rows.away import Away

__all__ = [
    "CANCEL",
    "PAGE",
    "PARTS_AT_ONCE",
    "PART_BYTES",
    "VALUE_LIMIT",
    "Away",
    "ProgramClaim",
    "Request",
    "cancel_program",
    "clear_value",
    "deliver_cancel",
    "find_request",
    "last_requests",
    "list_programs",
    "outcome",
    "publish",
    "read_published",
    "read_requests",
    "read_value",
    "record_following",
    "record_request",
    "resume_program",
    "send_event",
    "take_event",
    "write_parts",
]
