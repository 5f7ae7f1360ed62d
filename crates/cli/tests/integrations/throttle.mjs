import { createRequire } from "node:module";
const { createClient } = createRequire(import.meta.url)("redis");

const client = createClient({ socket: { port: Number(process.env.PORT) }, RESP: 3 });
await client.connect();

// 16 at once, 30 per 60 seconds.
const [limited, limit, remaining, retryAfter] = await client.sendCommand(["CL.THROTTLE", "user123", "15", "30", "60"]);
console.log(limited ? `rejected, retry in ${retryAfter} s` : `admitted, ${remaining} left`);

// A rule of the policy. RESP3 replies have names.
const check = await client.sendCommand(["TIDEGATE.CHECK", "default", "user:bob"]);
console.log(check.admitted ? "admitted" : `rejected, retry in ${check.retry_after_ms} ms`);

client.destroy();
