"""The activator's ASGI application: everything wired together, nothing decided.

    Boundary (ids, errors, log) → router → Proxy | Models | Warm | Control | metrics | probes

`build_app` is called by whoever serves it (`glowplug serve`, the Kubernetes entry point) with the
implementations of the contracts. All of it runs on one event loop; the server that runs the app
also runs its lifespan, or calls `start` and `stop`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from activator.auth import Identity, Keys
from activator.boundary import Boundary
from activator.control import Control
from activator.decisions import Decisions
from activator.functions import Functions
from activator.history import HistoryFiles
from activator.lanes import Lanes
from activator.limits import Limits
from activator.metrics import FrontDoorMetrics, MetricsPage
from activator.models import Models
from activator.proxy import Proxy
from activator.upstream import Upstream
from activator.warm import Warm
from glowplug.contracts import DemandSink, Endpoints, ForecastReport, History, Registry
from glowplug.errors import Unavailable
from glowplug.explanation import Explanations
from glowplug.metrics import MetricsText

DEFAULT_LIMITS = Limits()


class Activator:
    """The front door. Serves from `start` to `stop`."""

    def __init__(self, *, boundary: Boundary, lanes: Lanes, upstream: Upstream) -> None:
        self._boundary = boundary
        self._lanes = lanes
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            await self._boundary(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003, "reason": "HTTP only"})

    async def start(self) -> None:
        """Open for requests."""
        await self._upstream.start()
        self._lanes.start()

    async def stop(self) -> None:
        """Close what is open; call it when the server has no request any more."""
        await self._lanes.stop()
        await self._upstream.stop()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def build_app(
    *,
    registry: Registry,
    endpoints: Endpoints,
    demand: DemandSink,
    keys: Mapping[str, Identity] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    public_url: str | None = None,
    metrics: Sequence[MetricsText] = (),
    history: History | None = None,
    forecast: ForecastReport | None = None,
    accelerators: Callable[[], Collection[str]] = tuple,
    explanations: Explanations | None = None,
) -> Activator:
    """The activator over these implementations.

    `keys` maps an API key to who it is from; without keys everybody may do everything.
    `public_url` is how clients reach this server, for invoke URLs; None: as each request's Host.
    `accelerators` are the classes that functions can run on, none before they are known.
    `metrics` are other parts', which GET /metrics shows after the activator's own. Without
    `history` there is none to be read or imported. `forecast` is what GET
    /v1/functions/NAME/forecast answers; None: there are none. Without
    `explanations` nothing is explained.
    """
    functions = Functions(registry)  # before the lanes: they ask it when a function changes
    upstream = Upstream()
    lanes = Lanes(functions=functions, registry=registry, endpoints=endpoints, sink=demand)
    counts = FrontDoorMetrics(lanes.demands)
    lanes.on_close = counts.forget
    proxy = Proxy(functions=functions, lanes=lanes, upstream=upstream, limits=limits)
    models = Models(registry=registry, functions=functions, endpoints=endpoints)
    control = Control(
        registry=registry,
        endpoints=endpoints,
        limits=limits,
        public_url=public_url,
        forecast=forecast,
        accelerators=accelerators,
    )
    files = HistoryFiles(history, existing=control.existing, limits=limits) if history else None
    decisions = Decisions(explanations, existing=control.existing) if explanations else None
    router = Router(
        [
            Route("/f/{function}/v1/models", models.list_of, methods=["GET"]),
            Route("/f/{function}/v1/models/{model:path}", models.get_of, methods=["GET"]),
            Route(
                "/f/{function}/warm", Warm(functions=functions, lanes=lanes).post, methods=["POST"]
            ),
            Route("/f/{function}/v1/{path:path}", proxy),
            Route("/health", _health, methods=["GET"]),
            Route("/ready", _Ready(upstream).get, methods=["GET"]),
            Route("/metrics", MetricsPage([counts.text, *metrics]).get, methods=["GET"]),
            Route("/v1/models", models.list_all, methods=["GET"]),
            Route("/v1/models/{model:path}", models.get, methods=["GET"]),
            *control.routes(),
            *(files.routes() if files else ()),
            *(decisions.routes() if decisions else ()),
            Route("/v1/{path:path}", proxy),
        ],
        redirect_slashes=False,
    )
    boundary = Boundary(router, Keys(keys), counts)
    return Activator(boundary=boundary, lanes=lanes, upstream=upstream)


async def _health(_request: Request) -> Response:
    """The process answers."""
    return JSONResponse({"status": "ok"})


class _Ready:
    """Whether requests can be served: from start to stop."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def get(self, _request: Request) -> Response:
        if not self._upstream.is_open:
            raise Unavailable("the activator is starting or stopping", retry_after_s=1)
        return JSONResponse({"status": "ready"})
