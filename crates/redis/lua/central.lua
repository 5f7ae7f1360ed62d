-- One atomic script for all operations of the central store.
--
-- KEYS     the counters, without duplicates
-- ARGV     1 operation: decide | peek | refund | reset | override
--          2 now in microseconds, or "" for this server's own time
--          3 the shortest time to live of a key, in milliseconds
--          then, in numbers:
--            decide, peek   decisions, and for each: checks, and for each: key (its index in KEYS),
--                           capacity, tick, unit, drain, cost, role (1 binding, 2 advisory, 3 overage)
--            refund         refunds, and for each: key, capacity, tick, unit, drain, cost, charged (us)
--            reset          key
--            override       key, until (us, 0 for none), capacity, tick, unit, drain
-- Reply    integers; decide and peek: now, then for each check of each decision: verdict (0 pass, 1 not until,
--          2 never), span (us: wait or retry_after), limit, remaining, reset_after (us). The others: now.
--
-- A counter is { algorithm, tick, part, capacity, tick, unit, drain }, packed; an override adds
-- { until, capacity, tick, unit, drain }. `algorithm` is 0 if there is only an override.

local TOKEN_BUCKET = 1
local BINDING, ADVISORY, OVERAGE = 1, 2, 3

-- An override may affect refunds for this long after its end; it is kept twice as long, in case time goes back.
local REFUNDS_END = 60000000

local place = 3
local function next_number()
  place = place + 1
  return tonumber(ARGV[place])
end

local function next_limit()
  return { capacity = next_number(), tick = next_number(), unit = next_number(), drain = next_number() }
end

local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Each entry is read once and written once, even if several checks or decisions use it.
local entries = {}

local function entry_of(key)
  local entry = entries[key]
  if entry then
    return entry
  end
  entry = {}
  local packed = redis.call('GET', KEYS[key])
  if packed then
    local f = { cmsgpack.unpack(packed) }
    if f[1] == TOKEN_BUCKET then
      entry.state = { tick = f[2], part = f[3] }
      entry.limit = { capacity = f[4], tick = f[5], unit = f[6], drain = f[7] }
    end
    if f[8] then
      entry.instead = { till = f[8], limit = { capacity = f[9], tick = f[10], unit = f[11], drain = f[12] } }
    end
  end
  entries[key] = entry
  return entry
end

local function write(key, entry)
  local instead = entry.instead
  if instead and instead.till + 2 * REFUNDS_END <= now then
    instead = nil
  end
  if not entry.state and not instead then
    redis.call('DEL', KEYS[key])
    return
  end
  local ttl = tonumber(ARGV[3])
  local f = { 0, 0, 0, 0, 0, 0, 0 }
  if entry.state then
    local l = entry.limit
    f = { TOKEN_BUCKET, entry.state.tick, entry.state.part, l.capacity, l.tick, l.unit, l.drain }
    ttl = math.max(ttl, 2 * ceil_div(token_bucket.until_fresh(l, entry.state, now), 1000))
  end
  if instead then
    local l = instead.limit
    f[8], f[9], f[10], f[11], f[12] = instead.till, l.capacity, l.tick, l.unit, l.drain
    ttl = math.max(ttl, ceil_div(since(instead.till + 2 * REFUNDS_END, now), 1000))
  end
  redis.call('SET', KEYS[key], cmsgpack.pack(unpack(f)), 'PX', string.format('%.0f', ttl))
end

local function same(a, b)
  return a.capacity == b.capacity and a.tick == b.tick and a.unit == b.unit and a.drain == b.drain
end

local function in_force(entry, limit)
  if entry.instead and now < entry.instead.till then
    return entry.instead.limit
  end
  return limit
end

local function state_under(entry, limit)
  if not entry.state then
    return token_bucket.unseen
  end
  return token_bucket.rebase(limit, entry.limit, entry.state, now)
end

local function judge(check, cost)
  local entry = entry_of(check.key)
  local limit = in_force(entry, check.limit)
  return token_bucket.judge(limit, state_under(entry, limit), now, cost)
end

-- Converts the counter to the limit that applies, if that has changed; also in a decision that rejects.
local function adopt(check)
  local entry = entry_of(check.key)
  local limit = in_force(entry, check.limit)
  if entry.state and not same(limit, entry.limit) then
    entry.state, entry.limit, entry.dirty = state_under(entry, limit), limit, true
  end
end

local function charge(check)
  local entry = entry_of(check.key)
  local limit = entry.limit or in_force(entry, check.limit)
  entry.state = token_bucket.charge(limit, state_under(entry, limit), now, check.cost)
  entry.limit, entry.dirty = limit, true
end

local function is_charged(check, outcome)
  return outcome.verdict == PASS or check.role == OVERAGE
end

-- The other costs charged to the key of a check: for a binding check the earlier binding ones, for any other check all
-- binding ones and the earlier others that are charged.
local function beside(checks, outcomes, place)
  local check, cost, shared = checks[place], 0, false
  for i, other in ipairs(checks) do
    if i ~= place and other.key == check.key then
      shared = true
      local counted
      if other.role == BINDING then
        counted = check.role ~= BINDING or i < place
      else
        counted = check.role ~= BINDING and outcomes[i] and is_charged(other, outcomes[i])
      end
      if counted then
        cost = cost + other.cost
      end
    end
  end
  check.shared = shared
  return cost
end

local function judge_all(checks)
  local outcomes, passes = {}, true
  for i, check in ipairs(checks) do
    outcomes[i] = judge(check, beside(checks, outcomes, i) + check.cost)
    passes = passes and (outcomes[i].verdict == PASS or check.role ~= BINDING)
  end
  return outcomes, passes
end

-- Updates `remaining` and `reset_after` to the current values; the verdict stays.
local function refresh(check, outcome)
  local left = judge(check, 0)
  outcome.limit, outcome.remaining, outcome.reset_after = left.limit, left.remaining, left.reset_after
end

local function decide(checks)
  for _, check in ipairs(checks) do
    adopt(check)
  end
  local outcomes, passes = judge_all(checks)
  if passes then
    for i, check in ipairs(checks) do
      if is_charged(check, outcomes[i]) and check.cost > 0 then
        charge(check)
      end
    end
  end
  for i, check in ipairs(checks) do
    local fits = outcomes[i].verdict == PASS
    if fits ~= (passes and is_charged(check, outcomes[i])) or check.shared then
      refresh(check, outcomes[i])
    end
  end
  return outcomes
end

local function peek(checks)
  local outcomes = judge_all(checks)
  for i, check in ipairs(checks) do
    refresh(check, outcomes[i])
  end
  return outcomes
end

local reply = { now }

local function answer_all(answer)
  for _ = 1, next_number() do
    local checks = {}
    for i = 1, next_number() do
      checks[i] = { key = next_number(), limit = next_limit(), cost = next_number(), role = next_number() }
    end
    for _, o in ipairs(answer(checks)) do
      for _, field in ipairs({ o.verdict, o.span, o.limit, o.remaining, o.reset_after }) do
        reply[#reply + 1] = field
      end
    end
  end
end

local operation = ARGV[1]
if operation == 'decide' then
  answer_all(decide)
elseif operation == 'peek' then
  answer_all(peek)
elseif operation == 'refund' then
  for _ = 1, next_number() do
    local entry, limit, cost, charged = entry_of(next_number()), next_limit(), next_number(), next_number()
    -- Refund only if the counter still uses the limit of the charge; under another limit the rest is unknown.
    local instead = entry.instead
    local overridden = instead and charged < instead.till and now < instead.till + REFUNDS_END
    if entry.state and same(limit, entry.limit) and not overridden then
      entry.state, entry.dirty = token_bucket.refund(limit, entry.state, charged, now, cost), true
    end
  end
elseif operation == 'reset' then
  local entry = entry_of(next_number())
  entry.state, entry.limit, entry.dirty = nil, nil, true
elseif operation == 'override' then
  local entry, till = entry_of(next_number()), next_number()
  if till > 0 then
    entry.instead = { till = till, limit = next_limit() }
  elseif entry.instead then
    entry.instead.till = math.min(entry.instead.till, now)
  end
  entry.dirty = true
else
  return redis.error_reply('TIDEGATE unknown operation ' .. tostring(operation))
end

for key, entry in pairs(entries) do
  if entry.dirty then
    write(key, entry)
  end
end
return reply
