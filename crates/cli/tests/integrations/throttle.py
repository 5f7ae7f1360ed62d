import os
import redis

client = redis.Redis(port=int(os.environ["PORT"]), decode_responses=True)

# 16 at once, 30 per hour.
limited, limit, remaining, retry_after, reset_after = client.execute_command(
    "CL.THROTTLE", "user123", 15, 30, 3600
)
print(f"rejected, retry in {retry_after} s" if limited else f"admitted, {remaining} left")

# A rule of the policy.
admitted, limit, remaining, retry_after_ms, reset_after_ms, wait_ms, charged_at = client.execute_command(
    "TIDEGATE.CHECK", "default", "user:bob"
)
print("admitted" if admitted else f"rejected, retry in {retry_after_ms} ms")

# Many decisions at once.
pipeline = client.pipeline(transaction=False)
for user in range(100):
    pipeline.execute_command("CL.THROTTLE", f"user{user}", 15, 30, 3600)
print(sum(reply[0] == 0 for reply in pipeline.execute()), "admitted")
