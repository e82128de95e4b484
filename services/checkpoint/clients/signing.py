"""Signs manifests with a key that is made for this process and never leaves it. Implements `ports.Signer`.

Its public half is a row beside what it signed, named by its own digest. Can go wrong: a signature made for something else
taken for a manifest's; the text before the manifest keeps them apart.
"""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from libs.kernel.ids import digest

DOMAIN = b"runway.checkpoint.v1\x00"
KEY_ID_BYTES = 16


class ManifestSigner:
    """Ed25519."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public_bytes = self._key.public_key().public_bytes_raw()
        self.key_id = digest(self.public_bytes)[:KEY_ID_BYTES]

    def __repr__(self) -> str:
        return f"<signer of manifests {self.key_id.hex()}>"

    def sign(self, manifest: bytes) -> bytes:
        """The signature."""
        return self._key.sign(DOMAIN + manifest)

    def verifies(self, key_id: bytes, public_bytes: bytes, manifest: bytes, signature: bytes) -> bool:
        """Whether the key of this name and these bytes signed it."""
        if digest(public_bytes)[:KEY_ID_BYTES] != key_id:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(public_bytes).verify(signature, DOMAIN + manifest)
        except (InvalidSignature, ValueError):
            return False
        return True
