"""What this child process runs code in: the folder, the variables and the gpus of the first task that it runs, and no other.

Modules that were loaded, and what libraries made of the environment, can't be taken back: code that runs in anything else goes to
another process.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

from futures_worker.code.settings import Setting
from futures_worker.worker.child.kept import removed
from futures_worker.worker.child.task_context import set_own_setting


class OwnHome:
    """Settled once."""

    def __init__(self) -> None:
        self.settled = False
        self._setting: Setting | None = None
        self._where = ""
        self._gpus: str | None = None

    def admits(self, setting: Setting | None, where: str, gpus: str | None) -> bool:
        """Whether code of this setting may run here; the first one settles it. `where`: of its folder's files. Raises RemovedError."""
        if self.settled:
            return setting == self._setting and where == self._where
        if setting is not None:
            self._settle(setting, where)
            set_own_setting(setting)
        if gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        self._setting, self._where, self._gpus, self.settled = setting, where, gpus, True
        return True

    def stands(self, gpus: str | None) -> bool:
        """Whether the folder is where it was, and a task is given these very gpus. Called between tasks, in that folder."""
        if self.settled and gpus != self._gpus:
            return False
        if not self._where:
            return True
        try:
            return os.path.samestat(os.stat("."), os.stat(self._where))
        except OSError:
            return False

    def _settle(self, setting: Setting, where: str) -> None:
        if where:
            try:
                os.chdir(where)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise removed(where) from error
        first = [where] if where else []
        for name, value in setting.variables:
            os.environ[name] = value
            if name == "PYTHONPATH":
                first += [os.path.abspath(one) for one in value.split(os.pathsep) if one]
            elif name == "TZ":
                time.tzset()
        sys.path[:0] = first
        importlib.invalidate_caches()
