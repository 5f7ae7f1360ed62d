/** Asks Tidegate; returns whether the request is admitted, and the seconds until a retry can succeed. */
export async function check(server, rule, client, cost = 1) {
  const response = await fetch(server + "/v1/check", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ rule, client, cost }),
    signal: AbortSignal.timeout(2000),
  });
  if (!response.ok) throw new Error((await response.json()).detail);
  const { admitted, retry_after } = await response.json();
  return { admitted, retryAfter: retry_after };
}

const { admitted, retryAfter } = await check(process.argv[2], "default", "user:bob");
console.log(admitted ? "admitted" : `retry after ${retryAfter} s`);
