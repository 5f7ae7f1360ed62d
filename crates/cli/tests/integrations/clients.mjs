// ioredis and node-redis with both versions of the protocol and deep pipelines.
import assert from "node:assert";
import { createRequire } from "node:module";
const require = createRequire(import.meta.url);
const Redis = require("ioredis");
const { createClient } = require("redis");
const port = Number(process.env.PORT);
const throttle = (key) => ["CL.THROTTLE", key, "4999", "1", "3600"];

const ioredis = new Redis({ port });
assert.equal(await ioredis.ping(), "PONG");
assert.deepEqual(await ioredis.call(...throttle("ioredis")), [0, 5000, 4999, -1, 3600]);
const pipeline = ioredis.pipeline();
for (let i = 0; i < 10_000; i++) pipeline.call(...throttle("ioredis"));
const replies = await pipeline.exec();
assert.equal(replies.filter(([error, reply]) => !error && reply[0] === 0).length, 4999);
ioredis.disconnect();

for (const RESP of [2, 3]) {
  const client = createClient({ socket: { port }, RESP, name: "test" });
  await client.connect();
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.clientGetName(), "test");
  const key = `node${RESP}`;
  const replies = await Promise.all(Array.from({ length: 10_000 }, () => client.sendCommand(throttle(key))));
  assert.equal(replies.filter((reply) => reply[0] === 0).length, 5000);
  const check = await client.sendCommand(["TIDEGATE.CHECK", "default", `user:${key}`]);
  assert.equal(RESP === 3 ? check.admitted : check[0] === 1, true);
  await assert.rejects(client.get("key"), /unknown command 'GET'/);
  client.destroy();
}
console.log("passed");
