"""OpenTelemetry traces, off unless configured: one trace follows a task from the write that caused it to its result.

The packages call `span` and `traceparent` where work begins or is handed on; both do nothing until `configure_tracing` was
called, and then need the extra: `pip install "fdb-schema[tracing]"`. A context crosses processes as a W3C `traceparent`:
in the row (cluster, "s3heap", "trace", partition), and before the call options of a future.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from fdb_schema.errors import EXIT_USAGE, MainspringError

VARIABLE: Final = "MAINSPRING_OTLP_ENDPOINT"
_MARK: Final = b"tp1"
_LENGTH: Final = 55
_tracer: Any = None
_provider: Any = None


class TracingError(MainspringError):
    """Traces are asked for and can't be made."""

    exit_code: ClassVar[int] = EXIT_USAGE


def configure_tracing(service: str, endpoint: str | None = None) -> bool:
    """Send this process's spans to `endpoint`, or to that of the environment; False where there is none.

    An endpoint is the URL of an OTLP receiver over HTTP, as http://127.0.0.1:4318, or file:PATH for one JSON object per line.
    What is started from here inherits it. Raises `TracingError` where OpenTelemetry isn't installed.
    """
    global _tracer, _provider
    endpoint = endpoint or os.environ.get(VARIABLE)
    if not endpoint:
        return False
    if _tracer is not None:
        return True
    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        exporter = _exporter(endpoint, export)
    except ImportError as error:
        raise TracingError(f'traces need OpenTelemetry ({error}): pip install "fdb-schema[tracing]"') from None
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": f"mainspring-{service}"}))
    processor = export.SimpleSpanProcessor if endpoint.startswith("file:") else export.BatchSpanProcessor
    provider.add_span_processor(processor(exporter))
    os.environ[VARIABLE] = endpoint
    _provider, _tracer = provider, provider.get_tracer("mainspring")
    setattr(importlib.import_module("fdb_schema.serving.logs"), "trace_fields", _log_fields)  # noqa: B010 - loaded only now
    return True


def _exporter(endpoint: str, export: Any) -> Any:
    if not endpoint.startswith("file:"):
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        url = endpoint if endpoint.rstrip("/").endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces"
        return otlp.OTLPSpanExporter(endpoint=url)

    class FileExporter(export.SpanExporter):  # type: ignore[misc]
        """Appends spans as lines; several processes may share the file."""

        def export(self, spans: Any) -> Any:
            lines = [json.dumps(json.loads(span.to_json(indent=None))) for span in spans]
            descriptor = os.open(endpoint[5:], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, "".join(line + "\n" for line in lines).encode())
            finally:
                os.close(descriptor)
            return export.SpanExportResult.SUCCESS

    return FileExporter()


def enabled() -> bool:
    """Whether this process makes spans."""
    return _tracer is not None


@contextlib.contextmanager
def span(name: str, parent: str = "", **attributes: str | int | float | bool) -> Iterator[None]:
    """A span around a block, below `parent` (a traceparent) or the one that is current; an exception marks it failed."""
    if _tracer is None:
        yield
        return
    context = _propagator().extract({"traceparent": parent}) if parent else None
    with _tracer.start_as_current_span(name, context=context, attributes=attributes):
        yield


def traceparent() -> str:
    """The current span's context, to be stored or sent; "" where there is none."""
    if _tracer is None:
        return ""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent", "")


def flush() -> None:
    """Send what was made so far; before a process ends without ceremony."""
    if _provider is not None:
        with contextlib.suppress(Exception):
            _provider.force_flush(2_000)


def with_trace(options: bytes) -> bytes:
    """`options` with the current context before them; unchanged where there is none."""
    current = traceparent()
    return _MARK + current.encode() + options if len(current) == _LENGTH else options


def split_trace(options: bytes) -> tuple[str, bytes]:
    """The context ("" where there is none) and the options that `with_trace` joined."""
    if not options.startswith(_MARK):
        return "", options
    end = len(_MARK) + _LENGTH
    return options[len(_MARK) : end].decode(errors="replace"), options[end:]


def _propagator() -> Any:
    return importlib.import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()


def _log_fields() -> dict[str, str]:
    current = traceparent().split("-")
    return {"trace_id": current[1], "span_id": current[2]} if len(current) == 4 else {}
