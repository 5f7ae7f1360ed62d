# A FastAPI app with default settings that reports what it sees of a request.
import tokens
from fastapi import FastAPI, Request

app = FastAPI()
calls = 0


@app.api_route("/api/login", methods=["GET", "POST", "PUT", "HEAD"])
async def login():
    global calls
    calls += 1
    return {"calls": calls}


@app.get("/calls")
async def count():
    return {"calls": calls}


@app.get("/list/")
async def list_items(request: Request):
    return {"path": request.url.path}


@app.get("/items/{item}")
async def item(item: str, request: Request):
    return {"id": item, "query": request.url.query}


@app.get("/identity")
async def identity(request: Request):
    # All values: `get` would report only the first.
    key, user = (", ".join(request.headers.getlist(name)) for name in ("x-api-key", "x-user-id"))
    return {"key": key or None, "user": user or None}


@app.get("/token")
async def token(request: Request):
    users = tokens.users(request.headers.get("Authorization", ""))
    return {"users": users, "session": request.cookies.get("session")}
