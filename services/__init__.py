"""The six services. They meet only on the wire; `libs` has been imported first so that its settings of gRPC hold."""

import libs  # noqa: F401
