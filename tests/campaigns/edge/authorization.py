"""An authorization server, or key sets of clients, as a process."""

import json
import subprocess
import sys
from typing import Any

from attrs import define, field


@define
class Other:
    """The process of an authorization server, or of key sets. It can be killed and started again on its port."""

    port: int
    process: "subprocess.Popen[str]" = field(init=False)

    @property
    def options(self) -> list[str]:
        """Return the options with which `init` writes a configuration for this authorization server."""
        return ["--authorization-server", f"http://127.0.0.1:{self.port}/introspect", "--dialect", "rafiki"]

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        module = "incoming_payments.testing.authorization_server"
        command = [sys.executable, "-m", module, "--port", str(self.port), "--dialect", "rafiki"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == f"http://127.0.0.1:{self.port}\n"

    def __call__(self, do: str, **arguments: Any) -> Any:
        """Call a method of the server."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def kill(self) -> None:
        """End the process as a power failure would."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        """End the process."""
        self.process.communicate(timeout=30)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()
