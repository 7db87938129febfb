"""Signatures of artifacts: Ed25519 (RFC 8032), by the package `cryptography`, over the hash of the manifest.

The manifest holds the hash of every section, so a signature covers code, metadata and constants. Keys are PEM files as
`openssl genpkey -algorithm ed25519` writes them, their text, or objects of `cryptography`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

import msgspec

from tilewright.runtime.errors import OptionError, SignatureError

_CONTEXT = b"tilewright artifact\0"  # so that a signature of something else is none of an artifact
Key = Union[str, "os.PathLike[str]", bytes, Any]  # Any: a key of `cryptography`
Keys = Key | Sequence[Key]


class Signature(msgspec.Struct, frozen=True):
    """By the holder of a key. key: the public key, signature: 64 bytes; both in hexadecimal."""

    key: str
    signature: str


def sign(digest: bytes, key: Key) -> Signature:
    """Sign the hash of a manifest.

    Args:
        key: private.
    Raises:
        OptionError: `cryptography` is not installed, or the key is no private key of Ed25519.
    """
    private = _key(key, "private")
    return Signature(_raw(private.public_key()).hex(), private.sign(_CONTEXT + digest).hex())


def check_signatures(signatures: Sequence[Signature], digest: bytes, keys: Keys, name: str) -> Signature:
    """The signature by one of these keys.

    Args:
        keys: public; one or several. name: of what is signed.
    Raises:
        SignatureError: it is not signed, by none of the keys, or not as it is. OptionError: as of `sign`, of public keys.
    """
    trusted = {_raw(found).hex(): found for found in (_key(key, "public") for key in several(keys))}
    if not trusted:
        raise OptionError("key: wanted a public key of Ed25519 or several, got none; leave key= out to load any model")
    own = [s for s in signatures if s.key in trusted]
    if not own:
        signers, wanted = (", ".join(k[:16] for k in found) for found in ([s.key for s in signatures], trusted))
        found = f"it is signed by {signers}, and trusted is {wanted}" if signers else "it is not signed"
        raise SignatureError(f"{name} is refused: {found}; sign it with the key of the one given, or give another one")
    right = next((s for s in own if is_right(s, digest)), None)
    if right is None:
        raise altered(own[0], name)
    return right


def altered(signature: Signature, name: str) -> SignatureError:
    """What is said of a signature that is not right."""
    return SignatureError(f"{name} is refused: its signature by {signature.key[:16]} is not of what it holds; it was altered "
                          "after it was signed: take it from where it was signed")


def is_right(signature: Signature, digest: bytes) -> bool:
    """Is this the hash of a manifest that the holder of the key signed?"""
    ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key))
        public.verify(bytes.fromhex(signature.signature), _CONTEXT + digest)
    except (ValueError, InvalidSignature):
        return False
    return True


def several(keys: Keys) -> Sequence[Key]:
    """One key, or several."""
    return keys if isinstance(keys, list | tuple) else [keys]


def _key(key: Key, kind: str) -> Any:
    """A private or public key of `cryptography`; a private one for a public one is an error, as it has no business there."""
    ed25519 = _library()
    wanted = {"private": ed25519.Ed25519PrivateKey, "public": ed25519.Ed25519PublicKey}[kind]
    found = _from_pem(_pem(key), kind) if isinstance(key, str | os.PathLike | bytes) else key
    if not isinstance(found, wanted):
        raise OptionError(f"key: wanted a {kind} key of Ed25519 (a PEM file, its text, or {wanted.__name__}), got "
                          f"{type(found).__name__}; `openssl genpkey -algorithm ed25519` makes one")
    return found


def _pem(key: str | os.PathLike[str] | bytes) -> bytes:
    text = key if isinstance(key, bytes) else os.fsencode(key)
    if b"-----BEGIN " in text:
        return text
    path = Path(os.fsdecode(text))
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise OptionError(f"key: cannot read {path} ({error}); wanted a PEM file with a key of Ed25519, or its text") from error


def _from_pem(text: bytes, kind: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    try:
        return load_pem_private_key(text, None) if b"PRIVATE KEY" in text else load_pem_public_key(text)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise OptionError(f"key: wanted a {kind} key of Ed25519 as PEM, without a password: {error}") from error


def _raw(public: Any) -> bytes:
    return bytes(public.public_bytes_raw())


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise OptionError("signatures need the package cryptography: pip install cryptography (the extra `sign`)") from error
    return ed25519
