"""HTTP over uvicorn, whose one answer of its own is like all the others: an OpenAI-shaped error."""

import json

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from glowplug.errors import InvalidRequest


class JsonErrorProtocol(HttpToolsProtocol):
    """For uvicorn's `http`. What is no HTTP never becomes a request, so no app can answer it."""

    def send_400_response(self, msg: str) -> None:
        """Answer what could not be parsed, and close the connection."""
        error = InvalidRequest(f"{msg.rstrip('.')}; send HTTP/1.1", code="invalid_http")
        body = json.dumps(error.body()).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%s: %s" % header for header in headers)]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()
