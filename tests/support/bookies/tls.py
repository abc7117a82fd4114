"""The frames with which a connection to a bookie is upgraded to TLS, and a read of entry 0."""

from __future__ import annotations

import json
from pathlib import Path

from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "wire.json").read_text())


VECTORS = {vector["name"]: bytes.fromhex(vector["hex"] or "") for vector in GOLDEN}


REQUEST = VECTORS["v3_starttls_req"]


GRANTED = VECTORS["v3_starttls_rsp_ok"]


READ = frames.read_request(77, 0)


UNAUTHORIZED = frames.read_response(Code.UNAUTHORIZED, 77, 0)
