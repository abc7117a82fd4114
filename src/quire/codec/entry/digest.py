"""Digests and keys of entries, which are those of Apache's `DigestManager`.

| type   | number in metadata | bytes | content                                                |
|--------|--------------------|-------|--------------------------------------------------------|
| CRC32  | 1                  | 8     | zlib's CRC-32 as an unsigned, big-endian 64-bit number |
| HMAC   | 2                  | 20    | HMAC-SHA1 with the key SHA1("mac" + password)          |
| CRC32C | 3                  | 4     | CRC-32C (Castagnoli) as an unsigned, big-endian number |
| DUMMY  | 4                  | 0     | nothing: no protection against damage                  |

A digest covers the 32 bytes of entry metadata and the payload.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import zlib
from collections.abc import Callable, Sequence

import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


class DigestType(enum.IntEnum):
    """The checksum that protects the entries of a ledger. The values are those in its metadata.

    CRC32C is fast and detects damage. HMAC also detects entries that were forged without the
    ledger's password. DUMMY is no protection.
    """

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4

    @classmethod
    def parse(cls, name: str) -> DigestType:
        """Return the digest type with this name.

        Args:
            name: "crc32c", "crc32", "hmac" or "dummy", in any case. "mac" is Java's other name of
                HMAC.

        Returns:
            The digest type.

        Raises:
            ValueError: There is no digest type with this name.
        """
        upper = name.upper()
        if upper == "MAC":
            return cls.HMAC
        try:
            return cls[upper]
        except KeyError:
            raise ValueError(
                f"{name!r} is not a digest type: use crc32c, crc32, hmac or dummy"
            ) from None


DIGEST_SIZE_BYTES = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}
"""The number of bytes of each digest."""


def master_key(password: bytes) -> bytes:
    """Return the 20 bytes that authorise writing and fencing a ledger.

    They are sent with every add.
    """
    return hashlib.sha1(b"ledger" + password).digest()


def mac_key(password: bytes) -> bytes:
    """Return the key of HMAC digests, which is never sent."""
    return hashlib.sha1(b"mac" + password).digest()


crc32c_of: Callable[..., int] = _crc32c.crc32c
"""The library's CRC-32C function, for loops that cannot afford another Python call."""


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of `data`.

    `value` is the CRC-32C of the bytes before it, if there are any.
    """
    return crc32c_of(data, value)


_CRC32C_POLYNOMIAL = 0x82F63B78
"""The polynomial of CRC-32C, in the bit order of the algorithm: the lowest bit of a byte first."""


def crcs_of_one_bit(size_bytes: int) -> frozenset[int]:
    """Return every change that one flipped bit can make to a CRC-32C.

    A change is the exclusive or of the checksums before and after. The data has at most
    `size_bytes` bytes.
    """
    changes, change = [], _CRC32C_POLYNOMIAL
    for _ in range(8 * size_bytes):
        changes.append(change)
        change = change >> 1 ^ (_CRC32C_POLYNOMIAL if change & 1 else 0)
    return frozenset(changes)


def _of_crc32c(meta: Buffer, payload: Buffer) -> bytes:
    return crc32c_of(payload, crc32c_of(meta)).to_bytes(4, "big")


def digests_of(
    ofs: Sequence[Callable[[Buffer, Buffer], bytes]],
    metas: Sequence[bytes],
    payloads: Sequence[Buffer],
) -> list[bytes]:
    """Return the digests of entries of several ledgers, each with its own digester."""
    if ofs.count(_of_crc32c) == len(ofs):
        return [
            crc32c_of(payload, crc32c_of(meta)).to_bytes(4, "big")
            for meta, payload in zip(metas, payloads)
        ]
    return [of(meta, payload) for of, meta, payload in zip(ofs, metas, payloads)]


def _of_crc32(meta: Buffer, payload: Buffer) -> bytes:
    return zlib.crc32(payload, zlib.crc32(meta)).to_bytes(8, "big")


def _of_dummy(meta: Buffer, payload: Buffer) -> bytes:
    return b""


def digester(kind: DigestType, password: bytes) -> Callable[[Buffer, Buffer], bytes]:
    """Return a function that computes a digest from 32 bytes of entry metadata and a payload.

    `password` is that of the ledger. Only HMAC uses it.
    """
    if kind is DigestType.CRC32C:
        return _of_crc32c
    if kind is DigestType.CRC32:
        return _of_crc32
    if kind is DigestType.HMAC:
        keyed = hmac.new(mac_key(password), digestmod=hashlib.sha1)

        def of_hmac(meta: Buffer, payload: Buffer) -> bytes:
            mac = keyed.copy()
            mac.update(meta)
            mac.update(payload)
            return mac.digest()

        return of_hmac
    return _of_dummy
