"""redis-py with both versions of the protocol and deep pipelines."""
import os
import sys

import redis

# None: what the client selects by itself.
for protocol in (None, 2, 3):
    options = {} if protocol is None else {"protocol": protocol}
    client = redis.Redis(port=int(os.environ["PORT"]), decode_responses=True, client_name="test", **options)
    assert client.ping()
    # Current versions select RESP3. An older one would not test what users have: run `cargo xtask setup`.
    assert f"resp={protocol or 3}" in client.execute_command("CLIENT", "INFO"), redis.__version__
    assert client.echo("hello") == "hello"
    assert client.client_getname() == "test"
    assert client.info()["loading"] == 0
    key = f"python{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 4999, 1, 3600) == [0, 5000, 4999, -1, 3600]
    pipeline = client.pipeline(transaction=False)
    for _ in range(10_000):
        pipeline.execute_command("CL.THROTTLE", key, 4999, 1, 3600)
    replies = pipeline.execute()
    assert len(replies) == 10_000
    assert sum(reply[0] == 0 for reply in replies) == 4999, replies[-1]
    # The default of redis-py: a transaction.
    pipeline = client.pipeline()
    for _ in range(1_000):
        pipeline.execute_command("CL.THROTTLE", f"{key}-transaction", 499, 1, 3600)
    replies = pipeline.execute()
    assert sum(reply[0] == 0 for reply in replies) == 500, replies[-1]
    check = client.execute_command("TIDEGATE.CHECK", "default", f"user:{key}", 100)
    assert check[:4] == [1, 100, 0, -1], check
    check = client.execute_command("TIDEGATE.CHECK", "default", f"user:{key}", 100)
    assert check[0] == 0 and check[3] > 0, check
    try:
        client.get("key")
        sys.exit("GET must be an error")
    except redis.ResponseError as error:
        assert "unknown command 'GET'" in str(error), error
print("passed")
