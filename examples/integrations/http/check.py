import json
import sys
import urllib.request


def check(server, rule, client, cost=1):
    """Asks Tidegate; returns whether the request is admitted, and the seconds until a retry can succeed."""
    body = json.dumps({"rule": rule, "client": client, "cost": cost}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server + "/v1/check", body, headers)
    with urllib.request.urlopen(request, timeout=2) as response:
        decision = json.load(response)
    return decision["admitted"], decision["retry_after"]


if __name__ == "__main__":
    admitted, retry_after = check(sys.argv[1], "default", "user:bob")
    print("admitted" if admitted else f"retry after {retry_after} s")
