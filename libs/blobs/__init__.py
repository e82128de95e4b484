"""Content-addressed bytes in a local folder, memory, S3, GCS or Azure: named by their digest, verified on every read."""

from libs.blobs.codec import MAX_CHAIN, Header
from libs.blobs.store import BlobStore, Scope, Stored

__all__ = ["MAX_CHAIN", "BlobStore", "Header", "Scope", "Stored"]
