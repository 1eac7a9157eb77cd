"""What is answered: the page, the list of runs, a run's state once or again and again. GET only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fedoptima.analysis.spans import Kind
from fedoptima.dashboard.access import Guard
from fedoptima.dashboard.folder import RunFolder, Runs
from fedoptima.dashboard.state import about, condition, number
from fedoptima.dashboard.stream import Wish, messages
from fedoptima.dashboard.watch import Cadence, Watch, Watches
from fedoptima.reporting.palette import KIND_NAMES, KINDS_ON_DARK, KINDS_ON_LIGHT

_FOLLOWED = 8  # runs in progress whose figures a list shows


def dashboard(runs: Runs, *, token: str | None = None, cadence: Cadence | None = None) -> Starlette:
    watches = Watches(runs, cadence or Cadence())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        watches.close()

    # plotly's JavaScript comes from the installed package, which need not be imported for it.
    static = StaticFiles(packages=[("fedoptima.dashboard", "static"), ("plotly", "package_data")])

    async def page(request: Request) -> Response:
        return await static.get_response("index.html", request.scope)

    async def palette(_: Request) -> Response:
        return Response(_palette(), media_type="text/css")

    async def kinds(_: Request) -> Response:
        return Response(_kinds(), media_type="text/javascript")

    async def list_runs(_: Request) -> Response:
        found = await asyncio.to_thread(runs.all)
        rows = [await asyncio.to_thread(_row, runs, run) for run in found]
        going_on = [at for at, row in enumerate(rows) if row["state"] == "running"][:_FOLLOWED]
        for at in going_on:
            rows[at] |= _so_far(watches.of(found[at]))
        return _fresh({"single": runs.single, "runs": rows})

    async def find(request: Request) -> tuple[Watch | None, Wish, Response]:
        name = request.query_params.get("run", "")
        run = await asyncio.to_thread(runs.find, name)
        wish = Wish.of(request.query_params, over=run is not None and run.files.over)
        if run is None:
            return None, wish, PlainTextResponse("There is no such run.\n", 404)
        busy = PlainTextResponse("Too many runs are looked at; try again in a minute.\n", 503)
        return watches.of(run), wish, busy

    async def state(request: Request) -> Response:
        """Once, when all that is there has been read."""
        watch, wish, problem = await find(request)
        if watch is None:
            return problem
        stream = watch.snapshots(wish.span)
        try:
            async for snapshot in stream:
                if not snapshot.behind:
                    return _fresh(wish.cut(snapshot))
        finally:
            await stream.aclose()
        return problem

    async def events(request: Request) -> Response:
        watch, wish, problem = await find(request)
        if watch is None:
            return problem
        headers = {"Cache-Control": "no-store"}
        stream = messages(watch, wish)
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/static/palette.css", palette),
            Route("/static/kinds.js", kinds),
            Mount("/static", static),
            Route("/api/runs", list_runs),
            Route("/api/state", state),
            Route("/api/events", events),
        ],
        middleware=[Middleware(Guard, token=token), Middleware(GZipMiddleware, compresslevel=6)],
        lifespan=lifespan,
    )
    app.state.watches = watches
    return app


def _row(runs: Runs, run: RunFolder) -> dict[str, object]:
    description, kept = runs.read(run)
    state, text = condition(run, kept)
    return {
        "name": run.name,
        **about(description),
        "state": state,
        "text": text,
        "epochs": _figure(kept.get("epochs")),
        "quality": kept.get("quality"),
        "age": round(run.silent()),
    }


def _so_far(watch: Watch | None) -> dict[str, object]:
    if watch is None or watch.latest is None:
        return {}
    now = watch.latest.sections["now"]
    assert isinstance(now, dict)
    return {key: now[key] for key in ("state", "text", "quality", "epochs")}


def _figure(value: object) -> float | None:
    return number(value) if isinstance(value, int | float) else None


def _fresh(content: object) -> Response:
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


def _palette() -> str:
    def rule(colours: Mapping[Kind, str]) -> str:
        return ":root{" + "".join(f"--{_css(kind)}:{c};" for kind, c in colours.items()) + "}"

    return f"{rule(KINDS_ON_LIGHT)}\n@media (prefers-color-scheme: dark){{{rule(KINDS_ON_DARK)}}}\n"


def _kinds() -> str:
    """A module: what each kind of time is called, and its colour's name."""
    table = {kind.value: {"name": KIND_NAMES[kind], "colour": f"--{_css(kind)}"} for kind in Kind}
    return f"export const KINDS = {json.dumps(table)};\n"


def _css(kind: Kind) -> str:
    return kind.value.replace("_", "-")
