"""A transaction as the official binding calls it: its state, and what can be done with it."""

from __future__ import annotations

from .. import errors
from ..errors import Code
from . import committing, options, promising, read_version, reading, retrying, writing
from .promising import arm_timeout
from .state import TransactionState


class Transaction(TransactionState):
    """The engine's side of a transaction of the official binding. Threads may share it."""

    # Functions of the modules that they are in, so that a call of one costs no other.
    get = reading.get
    get_many = reading.get_many
    get_key = reading.get_key
    get_range = reading.get_range
    add_read_conflict_range = reading.add_read_conflict_range
    add_read_conflict_keys = reading.add_read_conflict_keys
    get_read_version = read_version.get_read_version
    peek_read_version = read_version.peek_read_version
    set_read_version = read_version.set_read_version

    set = writing.set_value
    set_many = writing.set_many
    clear = writing.clear
    clear_many = writing.clear_many
    clear_range = writing.clear_range
    atomic = writing.atomic
    add_write_conflict_range = writing.add_write_conflict_range

    watch = promising.watch
    get_versionstamp = promising.get_versionstamp
    commit = committing.commit
    on_error = retrying.on_error
    cancel = retrying.cancel
    reset = retrying.reset

    def set_option(self, option: int, parameter: bytes | None) -> None:
        """Set a transaction option; an unknown one raises `Code` 2007 at once, a bad value is deferred."""
        options.check_transaction_option(option)
        if self.deferred:
            return
        if option == options.IDEMPOTENCY_ID:
            self.set_idempotency_id(parameter)
            return
        if option == options.NEXT_WRITE_NO_WRITE_CONFLICT_RANGE:
            self.no_write_conflict = True
            self.plain = False
            return
        try:
            if parameter and option in options.WITHOUT_VALUE:
                raise Code(errors.INVALID_OPTION_VALUE)
            if option == options.USE_GRV_CACHE and self.database.api_version >= options.SHARED_GRV_CACHE:
                raise Code(errors.INVALID_OPTION)  # it is for clients of several versions in one process
            if option == options.READ_YOUR_WRITES_DISABLE:
                written = self.overlay or self.write_ranges or self.write_points
                read = self.seen or self.view is not None or self.asked or self.read_error
                if read or (written and not self.options.ryw_disabled):
                    raise Code(errors.CLIENT_INVALID_OPERATION)
                if not self.options.ryw_disabled:  # the client forgets what read conflicts were added before
                    self.read_ranges, self.read_points = [], None
                self.plain = False
            elif option == options.AUTOMATIC_IDEMPOTENCY:
                self.automatic_id = True
            if option == options.TIMEOUT:
                self.expire()
            self.options = self.options.with_option(option, parameter)
            if option == options.TIMEOUT and self.promises is not None:
                arm_timeout(self)
        except Code as error:
            self.defer(error.code)
            return

    def is_never_made(self) -> bool:
        """Whether the commit that ended last without an answer (1031, 1025, 1101) was never begun, and never will be."""
        attempt = self.attempt
        if attempt is None or not attempt.done or self.database.faulty is not None:  # which may make another of it
            return False
        return self.engine.committer.is_never_made(attempt)

    def set_idempotency_id(self, name: bytes | None, automatic: bool = False) -> None:
        """Options 504 and, with `automatic`, 505 in one call."""
        if name is None:
            self.defer(errors.INVALID_OPTION_VALUE)
            return
        if not options.MIN_ID <= len(name) <= options.MAX_ID:
            self.defer(errors.INVALID_OPTION)
            return
        self.given_id = name
        self.automatic_id = automatic

    def approximate_size(self) -> int:
        """Bytes of all operations so far, whatever came of them; it is answered in any state but after an error."""
        if self.deferred:
            raise Code(self.deferred)
        return self.approximate
