// ioredis and node-redis with both versions of the protocol and deep pipelines.
import assert from "node:assert";
import { createRequire } from "node:module";
const require = createRequire(import.meta.url);
const Redis = require("ioredis");
const { createClient } = require("redis");
const port = Number(process.env.PORT);
const throttle = (key) => ["CL.THROTTLE", key, "4999", "1", "3600"];

async function assertChecked(check, key) {
  const command = ["TIDEGATE.CHECK", "default", `user:${key}`, "100"];
  const [admitted, limit, remaining, retryAfter] = await check(command);
  assert.deepEqual([admitted, limit, remaining, retryAfter], [1, 100, 0, -1]);
  const rejected = await check(command);
  assert.ok(rejected[0] === 0 && rejected[3] > 0, rejected);
}

// Without a version: what the client selects by itself. Current versions select RESP3; an older one would not test what users
// have: run `cargo xtask setup`.
for (const options of [{}, { protocol: 2 }, { protocol: 3 }]) {
  const client = new Redis({ port, ...options });
  const key = `ioredis${options.protocol}`;
  assert.equal(await client.ping(), "PONG");
  assert.match(await client.call("CLIENT", "INFO"), new RegExp(`resp=${options.protocol ?? 3}`));
  assert.deepEqual(await client.call(...throttle(key)), [0, 5000, 4999, -1, 3600]);
  const pipeline = client.pipeline();
  for (let i = 0; i < 10_000; i++) pipeline.call(...throttle(key));
  const replies = await pipeline.exec();
  assert.equal(replies.filter(([error, reply]) => !error && reply[0] === 0).length, 4999);
  await assertChecked((command) => client.call(...command), key);
  client.disconnect();
}

for (const options of [{}, { RESP: 2 }, { RESP: 3 }]) {
  const client = createClient({ socket: { port }, name: "test", ...options });
  await client.connect();
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.clientGetName(), "test");
  assert.match(await client.sendCommand(["CLIENT", "INFO"]), new RegExp(`resp=${options.RESP ?? 3}`));
  const key = `node${options.RESP}`;
  const replies = await Promise.all(Array.from({ length: 10_000 }, () => client.sendCommand(throttle(key))));
  assert.equal(replies.filter((reply) => reply[0] === 0).length, 5000);
  await assertChecked((command) => client.sendCommand(command), key);
  await assert.rejects(client.get("key"), /unknown command 'GET'/);
  client.destroy();
}
console.log("passed");
