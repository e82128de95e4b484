"""What the services stand on. Nothing here knows a service.

gRPC's own fork handlers are off: children are started by exec only, and handlers that run between fork and exec while other
threads are inside gRPC have crashed them.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
