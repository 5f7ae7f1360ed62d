import { createRequire } from "node:module";
const { createClient } = createRequire(import.meta.url)("redis");

const client = createClient({ socket: { port: Number(process.env.PORT) } });
await client.connect();

// 16 at once, 30 per hour.
const [limited, limit, remaining, retryAfter] = await client.sendCommand(["CL.THROTTLE", "user123", "15", "30", "3600"]);
console.log(limited ? `rejected, retry in ${retryAfter} s` : `admitted, ${remaining} left`);

// A rule of the policy.
const check = await client.sendCommand(["TIDEGATE.CHECK", "default", "user:bob"]);
const [admitted, , , retryAfterMs] = check;
console.log(admitted ? "admitted" : `rejected, retry in ${retryAfterMs} ms`);

client.destroy();
