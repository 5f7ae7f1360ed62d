# A Flask app with default settings that reports what it sees of a request.
import tokens
from flask import Flask, request

app = Flask(__name__)
calls = 0


@app.route("/api/login", methods=["GET", "POST", "PUT"])
def login():
    global calls
    calls += 1
    return {"calls": calls}


@app.get("/calls")
def count():
    return {"calls": calls}


@app.get("/list/")
def list_items():
    return {"path": request.path}


@app.get("/items/<item>")
def item(item):
    return {"id": item, "query": request.query_string.decode()}


@app.get("/identity")
def identity():
    return {"key": request.headers.get("X-API-Key"), "user": request.headers.get("X-User-Id")}


@app.get("/token")
def token():
    users = tokens.users(request.headers.get("Authorization", ""))
    return {"users": users, "session": request.cookies.get("session")}
