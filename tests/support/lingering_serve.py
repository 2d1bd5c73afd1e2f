"""capsnet-serve that waits at its end for clients which the machine holds up, not only for slow ones."""

import sys

from service.cli import main
from service.http import graceful_server

graceful_server.LINGER_S = 5.0  # here, so that workers have it, too: they import this file

if __name__ == "__main__":
    sys.exit(main())
