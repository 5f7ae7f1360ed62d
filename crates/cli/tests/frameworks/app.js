// An Express app with default settings that reports what it sees of a request.
const cookie = require('cookie');
const express = require('express');
const jwt = require('jsonwebtoken');
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


// The ways in which services take a token out of a header.
const readings = (value) => [
  value,
  value.trim(),
  value.slice(7),
  value.split(' ')[1],
  value.split(' ').pop(),
  value.trim().split(/\s+/)[1],
  value.replace('Bearer ', ''),
  value.replaceAll('Bearer ', ''),
  value.replace(/bearer/gi, '').trim(),
  value.match(/bearer[\s:]+(\S+)/i)?.[1],
  value.match(/"(.*)"/)?.[1],
  value.split(',').pop().trim().split(' ').pop(),
];
app.get('/token', (request, response) => {
  const { authorization = '', cookie: cookies = '' } = request.headers;
  const users = new Set();
  for (const token of readings(authorization)) {
    try {
      const options = { algorithms: ['HS256'], ignoreExpiration: true, ignoreNotBefore: true };
      users.add(jwt.verify(token, process.env.TOKEN_SECRET, options).sub);
    } catch {
      // Not a token.
    }
  }
  response.json({ users: [...users], session: cookie.parse(cookies).session ?? null });
});

const server = app.listen(0, '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
