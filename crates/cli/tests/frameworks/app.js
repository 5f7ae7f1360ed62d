// An Express app with default settings that reports what it sees of a request.
const express = require('express');
const app = express();
let calls = 0;

app.all('/api/login', (request, response) => response.json({ calls: ++calls }));
app.get('/calls', (request, response) => response.json({ calls }));
app.get('/list/', (request, response) => response.json({ path: request.path }));
app.get('/items/:id', (request, response) => {
  const query = request.originalUrl.split('?')[1] ?? '';
  response.json({ id: request.params.id, query });
});
app.get('/identity', (request, response) => {
  const { 'x-api-key': key, 'x-user-id': user } = request.headers;
  response.json({ key: key ?? null, user: user ?? null });
});

const server = app.listen(0, '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
