"""The golden vectors of the v2 protocol, entries, digests and keys, made with the Java jars."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from quire.codec.entry.digest import DigestType, mac_key, master_key
from quire.codec.entry.entry import AddEncoder, EntryCodec, check_batch
from quire.codec.wire import v2 as frames

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in json.loads((Path(__file__).parents[2] / "golden" / "wire.json").read_text())
}


def named(prefix: str) -> list[str]:
    names = [name for name in VECTORS if name.startswith(prefix)]
    assert names, prefix
    return names


def pattern(size: int) -> bytes:
    return bytes((31 * i + 7) % 256 for i in range(size))


def payload_of(inputs: dict[str, Any]) -> bytes:
    if inputs.get("payload_hex") is not None:
        return bytes.fromhex(inputs["payload_hex"])
    return pattern(int(inputs["payload_length"]))


def same(data: bytes, vector: dict[str, Any]) -> None:
    assert len(data) == vector["length"]
    if vector["hex"] is not None:
        assert data.hex() == vector["hex"]
    assert hashlib.sha256(data).hexdigest() == vector["sha256"]


def codec_of(inputs: dict[str, Any]) -> EntryCodec:
    return EntryCodec(
        int(inputs["ledger_id"]),
        DigestType[inputs["digest_type"]],
        bytes.fromhex(inputs["password_hex"]),
    )


@pytest.mark.parametrize("name", named("key_"))
def test_keys_derived_from_passwords_equal_those_of_java(name: str) -> None:
    vector = VECTORS[name]
    derive = master_key if "master" in name else mac_key
    same(derive(bytes.fromhex(vector["inputs"]["password_hex"])), vector)


@pytest.mark.parametrize("name", named("v2_header_"))
def test_header_words_are_encoded_and_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    word = int(vector["hex"], 16)
    version, opcode, flags = frames.split_word(word)
    assert (version, opcode) == (inputs["version"], inputs["opcode"])
    if version:
        assert flags == inputs["flags"]
        assert frames.header_word(opcode, flags, version) == word


@pytest.mark.parametrize("name", named("entry_"))
def test_entries_are_packed_and_unpacked_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    codec, payload = codec_of(inputs), payload_of(inputs)
    entry_id, lac = int(inputs["entry_id"]), int(inputs["last_add_confirmed"])
    length = int(inputs["ledger_length"])
    data = codec.pack(entry_id, lac, length, payload)
    same(data, vector)
    entry = codec.unpack(data, entry_id)
    assert entry == (codec.ledger_id, entry_id, length, payload)
    assert codec.check(data) == (entry_id, lac, length)


@pytest.mark.parametrize("name", named("lac_"))
def test_lac_packets_are_packed_and_unpacked_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    codec = codec_of(vector["inputs"])
    data = codec.pack_lac(int(vector["inputs"]["lac"]))
    same(data, vector)
    assert codec.unpack_lac(data) == int(vector["inputs"]["lac"])


@pytest.mark.parametrize("name", named("v2_add_req_"))
def test_add_requests_are_encoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    codec, payload = codec_of(inputs), payload_of(inputs)
    key = master_key(bytes.fromhex(inputs["password_hex"]))
    length = int(inputs["ledger_length"])
    entry_id, lac = int(inputs["entry_id"]), int(inputs["last_add_confirmed"])
    slow = frames.add_request(key, codec.pack(entry_id, lac, length, payload), inputs["flags"])
    same(slow, vector)
    encoder = AddEncoder(codec, key, inputs["flags"])
    parts, after = encoder.parts(entry_id, lac, length - len(payload), [payload])
    same(b"".join(parts), vector)
    assert after == length


@pytest.mark.parametrize("name", named("v2_read_req"))
def test_read_requests_are_encoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    key = bytes.fromhex(inputs["master_key_hex"] or "")
    data = frames.read_request(inputs["ledger_id"], inputs["entry_id"], inputs["flags"], key)
    if name == "v2_read_req_key_without_fence":
        data = data + key  # Java sends the key where it need not; we do not
        data = (len(data) - 4).to_bytes(4, "big") + data[4:]
    same(data, vector)


@pytest.mark.parametrize("name", named("v2_batch_read_req"))
def test_batch_read_requests_are_encoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    same(
        frames.batch_read_request(
            inputs["ledger_id"],
            inputs["entry_id"],
            inputs["request_id"],
            inputs["max_count"],
            inputs["max_size"],
            inputs["flags"],
            bytes.fromhex(inputs["master_key_hex"] or ""),
        ),
        vector,
    )


@pytest.mark.parametrize("name", named("v2_auth_"))
def test_auth_messages_are_encoded_as_in_java(name: str) -> None:
    inputs = VECTORS[name]["inputs"]
    message = frames.auth_message(inputs["auth_plugin_name"], bytes.fromhex(inputs["payload_hex"]))
    same(frames.auth_frame(message), VECTORS[name])


@pytest.mark.parametrize("name", named("v2_add_rsp_"))
def test_add_responses_are_encoded_as_in_java(name: str) -> None:
    inputs = VECTORS[name]["inputs"]
    codes = inputs.get("error_codes", [inputs.get("error_code")])
    data = b"".join(
        frames.add_response(code, inputs["ledger_id"], inputs["entry_id"]) for code in codes
    )
    same(data, VECTORS[name])


@pytest.mark.parametrize("name", named("v2_read_rsp_"))
def test_read_responses_are_encoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    if "entry_length" in inputs:
        entry = EntryCodec(42, DigestType.CRC32C, b"testPasswd").pack(
            7, 6, 1000 + 16384, pattern(16384)
        )
        if hashlib.sha256(entry).hexdigest() != inputs["entry_sha256"]:
            pytest.fail("the entry of this vector is not the pattern entry")
    else:
        entry = bytes.fromhex(inputs.get("entry_hex", ""))
    data = frames.read_response(
        inputs["error_code"], inputs["ledger_id"], inputs["entry_id"], entry
    )
    same(data, vector)


@pytest.mark.parametrize("name", named("v2_batch_read_rsp_"))
def test_batch_read_responses_are_encoded_and_unpacked_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    entries = [bytes.fromhex(entry) for entry in inputs.get("entries_hex", ())]
    data = frames.batch_read_response(
        inputs["error_code"],
        inputs["ledger_id"],
        inputs["entry_id"],
        inputs["request_id"],
        entries,
    )
    same(data, vector)
    if entries:
        codec = EntryCodec(42, DigestType.CRC32C, b"testPasswd")
        run = check_batch(
            codec, data, inputs["entry_id"], frames.BATCH_RESPONSE_BYTES, len(data), 1_000
        )
        assert run.payloads() == [codec.unpack(entry).payload for entry in entries]


def test_the_number_of_v2_vectors_is_complete() -> None:
    """All v2, key, entry and LAC vectors are named above."""
    used = ("key_", "v2_", "entry_", "lac_")
    assert sum(name.startswith(used) for name in VECTORS) == 144
