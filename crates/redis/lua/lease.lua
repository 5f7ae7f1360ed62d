-- Leases: nodes take blocks of units, spend them locally and settle. See src/lease/mod.rs for the protocol and its proof.
--
-- KEYS     the counters, without duplicates
-- ARGV     1: packed, little endian:
--            header     '<ddHH'  now (us; negative for this server's own time), the shortest time to live of a key (ms),
--                                limits, operations
--            limits     '<Bdddd' algorithm (1 token_bucket, 2 fixed_window, 3 sliding_window_counter), capacity, and
--                                tick, unit, drain | length, 0, 0 | tick, length, 0
--            operations '<BHHddddddddd' kind, key (index in KEYS), limit, and
--                                acquire (1): node, sequence, epoch, spent, granted, want, least, nodes, debt
--                                peek (2):    cost in `least`
--                                reset (3)
--                                override (4): until (us, 0 for none) in `want`; `limit` is the replacement
-- Reply    packed; for each operation '<Bddddddddd': status (0 done, 1 ignored: not the newest request of the node,
--          2 the entry has a newer format), now, epoch (0: no lease), granted, life (us), available, capacity,
--          retry_after (us), reset_after (us), units that other nodes hold
--
-- An entry is '<BBBB' version, algorithm (0: none), has an override, records; then '<ddddddd' the limit's four numbers
-- and the state's three; then the override '<dBdddd' until, limit; then each record '<dddddddB': node, sequence, epoch, at
-- (the time of its first grant, us), granted, spent, expiry (us), whether the counter was reset since it last settled.

local VERSION = 1
local TOKEN_BUCKET, FIXED_WINDOW, SLIDING_COUNTER = 1, 2, 3
local ACQUIRE, PEEK, RESET, OVERRIDE = 1, 2, 3, 4
local DONE, IGNORED, NEWER = 0, 1, 2

-- An override is kept this long after its end, in case time goes back.
local OVERRIDE_KEPT = 120000000
-- A lease of token_bucket lives for a sixth of the time in which the bucket refills, within these bounds.
local MIN_LIFE, MAX_LIFE = 2000000, 10000000

local algorithms = { token_bucket, fixed_window, sliding_counter }

local data = ARGV[1]
local now, least_ttl, limit_count, operation_count, place = struct.unpack('<ddHH', data)
if now < 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function new_limit(kind, a, b, c, d)
  local limit = { kind = kind, capacity = a, a = a, b = b, c = c, d = d }
  if kind == TOKEN_BUCKET then
    limit.tick, limit.unit, limit.drain = b, c, d
  elseif kind == FIXED_WINDOW then
    limit.length, limit.window = b, b
  else
    limit.tick, limit.length, limit.window = b, c, b * c
  end
  return limit
end

local function same(x, y)
  return x == y or x.kind == y.kind and x.a == y.a and x.b == y.b and x.c == y.c and x.d == y.d
end

local limits = {}
for i = 1, limit_count do
  local kind, a, b, c, d
  kind, a, b, c, d, place = struct.unpack('<Bdddd', data, place)
  limits[i] = new_limit(kind, a, b, c, d)
end

-- Most entries use a limit of the call.
local function find_limit(kind, a, b, c, d)
  for i = 1, limit_count do
    local limit = limits[i]
    if limit.a == a and limit.b == b and limit.c == c and limit.d == d and limit.kind == kind then
      return limit
    end
  end
  return new_limit(kind, a, b, c, d)
end

local function unpack_state(kind, x, y, z)
  if kind == TOKEN_BUCKET then
    return { tick = x, part = y }
  elseif kind == FIXED_WINDOW then
    return { window = x, count = y }
  end
  return { window = x, previous = y, current = z }
end

local function pack_state(kind, state)
  if kind == TOKEN_BUCKET then
    return state.tick, state.part, 0
  elseif kind == FIXED_WINDOW then
    return state.window, state.count, 0
  end
  return state.window, state.previous, state.current
end

local function unpack_entry(packed)
  local entry = { records = {} }
  if not packed then
    return entry
  end
  if string.byte(packed, 1) > VERSION then
    entry.newer = true
    return entry
  end
  local _, kind, overridden, count, at = struct.unpack('<BBBB', packed)
  if kind > 0 then
    local a, b, c, d, x, y, z
    a, b, c, d, x, y, z, at = struct.unpack('<ddddddd', packed, at)
    entry.limit, entry.state = find_limit(kind, a, b, c, d), unpack_state(kind, x, y, z)
  end
  if overridden == 1 then
    local till, k, a, b, c, d
    till, k, a, b, c, d, at = struct.unpack('<dBdddd', packed, at)
    entry.instead = { till = till, limit = new_limit(k, a, b, c, d) }
  end
  for i = 1, count do
    local node, sequence, epoch, granted_at, granted, spent, expiry, was_reset
    node, sequence, epoch, granted_at, granted, spent, expiry, was_reset, at = struct.unpack('<dddddddB', packed, at)
    entry.records[i] = {
      node = node, sequence = sequence, epoch = epoch, at = granted_at,
      granted = granted, spent = spent, expiry = expiry, reset = was_reset,
    }
  end
  return entry
end

local values = redis.call('MGET', unpack(KEYS))
local entries = {}

local function entry_of(key)
  local entry = entries[key]
  if not entry then
    entry = unpack_entry(values[key])
    entries[key] = entry
  end
  return entry
end

-- The units that nodes other than `node` can still spend, and the number of these nodes.
local function held_by_others(entry, node)
  local units, nodes, window = 0, 0, entry.limit.window
  for _, r in ipairs(entry.records) do
    if r.node ~= node and (not window or floor_div(r.at, window) == floor_div(now, window)) then
      units, nodes = units + r.granted - r.spent, nodes + 1
    end
  end
  return units, nodes
end

-- The state with all leased units charged. Windows charge units when they are granted.
local function occupied(entry)
  local limit, state = entry.limit, entry.state
  if limit.kind ~= TOKEN_BUCKET then
    return state
  end
  local units = held_by_others(entry, 0)
  if units <= 0 then
    return state
  end
  return token_bucket.charge(limit, state, now, units)
end

local function charge(entry, at, units)
  if units > 0 then
    entry.state = algorithms[entry.limit.kind].charge(entry.limit, entry.state, at, units)
    entry.dirty = true
  end
end

-- Gives units back to the window in which they were granted.
local function give_back(entry, granted_at, units)
  if units > 0 then
    entry.state = algorithms[entry.limit.kind].refund(entry.limit, entry.state, granted_at, now, units)
    entry.dirty = true
  end
end

local function remove(entry, record)
  for i, r in ipairs(entry.records) do
    if r == record then
      table.remove(entry.records, i)
      entry.dirty = true
      return
    end
  end
end

-- The holder of an expired lease may have spent all of it, at the latest at its expiry.
local function expire(entry)
  while true do
    local first
    for _, r in ipairs(entry.records) do
      if r.expiry <= now and (not first or r.expiry < first.expiry) then
        first = r
      end
    end
    if not first then
      return
    end
    if entry.limit.kind == TOKEN_BUCKET and first.reset == 0 then
      charge(entry, first.expiry, first.granted - first.spent)
    end
    remove(entry, first)
  end
end

-- Converts the counter to the limit that applies now.
local function adopt(entry, limit)
  if entry.instead and now < entry.instead.till then
    limit = entry.instead.limit
  end
  if not entry.state then
    entry.limit, entry.state = limit, algorithms[limit.kind].unseen
    return
  end
  expire(entry)
  local old = entry.limit
  if same(limit, old) then
    return
  end
  local state = algorithms[limit.kind].unseen
  if limit.kind ~= old.kind or limit.window ~= old.window then
    -- Leases of other windows cannot be given back: they count as spent.
    local units = held_by_others(entry, 0)
    entry.records = {}
    if limit.kind == old.kind then
      state = algorithms[limit.kind].rebase(limit, old, entry.state, now)
    elseif units > 0 then
      state = algorithms[limit.kind].charge(limit, state, now, units)
    end
  else
    state = algorithms[limit.kind].rebase(limit, old, entry.state, now)
  end
  entry.limit, entry.state, entry.dirty = limit, state, true
end

local function window_end(entry)
  local limit = entry.limit
  local window = math.max(entry.state.window, floor_div(now, limit.window))
  return math.min((window + 1) * limit.window, MAX)
end

-- How long units granted now may be spent.
local function life_of(entry)
  local limit, life = entry.limit, nil
  if limit.kind == TOKEN_BUCKET then
    local refill = limit.capacity * limit.unit / limit.drain * limit.tick
    life = math.floor(math.max(MIN_LIFE, math.min(MAX_LIFE, refill / 6)))
  else
    life = since(window_end(entry), now)
  end
  if entry.instead and now < entry.instead.till then
    life = math.min(life, entry.instead.till - now)
  end
  return life
end

-- Applies what the node reports: what it has spent, and which units it still knows. Units that it does not know will never
-- be spent: it has released them, or never received them. Returns the record, if it can take more units.
local function settle(entry, record, op)
  local window = entry.limit.kind ~= TOKEN_BUCKET
  if record.epoch ~= op.epoch then
    -- The node knows every lease up to `op.epoch` and none after it: a newer one never reached the node; an older one was
    -- forgotten by the node, perhaps after it was spent.
    local unspent = record.granted - record.spent
    if window and record.epoch > op.epoch then
      give_back(entry, record.at, unspent)
    elseif not window and record.epoch < op.epoch then
      charge(entry, now, unspent)
    end
    remove(entry, record)
    return nil
  end
  local spent, released = op.spent - record.spent, record.granted - op.granted
  if window then
    give_back(entry, record.at, released + (record.reset == 1 and spent or 0))
    if released < 0 then
      charge(entry, record.at, -released)
    end
  elseif record.reset == 0 then
    charge(entry, now, spent)
  end
  record.sequence, record.spent, record.granted, record.reset = op.sequence, op.spent, op.granted, 0
  entry.dirty = true
  if record.granted <= record.spent
    or window and floor_div(record.at, entry.limit.window) ~= floor_div(window_end(entry) - 1, entry.limit.window) then
    remove(entry, record)
    return nil
  end
  return record
end

-- A first block is the node's fair share of what the nodes without a lease can get; later blocks follow its demand, at most
-- half of what is left, so that blocks shrink near the limit.
local function size_of_grant(entry, record, op, available)
  if available <= 0 or available < op.least then
    return 0
  end
  local share
  if record then
    share = op.nodes > 1 and floor_div(available, 2) or available
  else
    local _, others = held_by_others(entry, op.node)
    share = floor_div(available, math.max(op.nodes - others, 1))
  end
  return math.min(op.want, math.max(share, op.least, 1), available)
end

local function acquire(entry, op)
  adopt(entry, op.limit)
  local record
  for _, r in ipairs(entry.records) do
    if r.node == op.node then
      record = r
    end
  end
  if record and op.sequence <= record.sequence then
    return IGNORED, 0, 0, 0, 0
  end
  if record then
    record = settle(entry, record, op)
  end
  charge(entry, now, op.debt)
  local kind = entry.limit.kind
  local state = occupied(entry)
  local available = algorithms[kind].judge(entry.limit, state, now, 0).remaining
  local units = size_of_grant(entry, record, op, available)
  if entry.limit.window and floor_div(now, entry.limit.window) < entry.state.window then
    -- Time went back: units of the later window would be spent in the earlier one.
    units = 0
  end
  if units > 0 then
    if kind ~= TOKEN_BUCKET then
      charge(entry, now, units)
    end
    if not record then
      record = { node = op.node, sequence = op.sequence, epoch = op.sequence, at = now, granted = 0, spent = 0, reset = 0 }
      table.insert(entry.records, record)
    end
    record.granted = record.granted + units
    entry.dirty = true
  end
  if record then
    -- Units of a sliding window can be given back in the window after it.
    record.expiry = now + life_of(entry) + (kind == SLIDING_COUNTER and entry.limit.window or 0)
  end
  local retry_after = 0
  if units < op.least then
    retry_after = algorithms[kind].judge(entry.limit, state, now, op.least).span
  end
  return DONE, record and record.epoch or 0, units, available - units, retry_after
end

-- What is available, and the time until the cost fits.
local function peek(entry, op)
  adopt(entry, op.limit)
  local judge, state = algorithms[entry.limit.kind].judge, occupied(entry)
  return DONE, 0, 0, judge(entry.limit, state, now, 0).remaining, judge(entry.limit, state, now, op.least).span
end

-- The time until the counter equals an unused one, if all leased units are spent. `write` needs it too.
local function fresh_after(entry)
  if not entry.fresh then
    entry.fresh = algorithms[entry.limit.kind].until_fresh(entry.limit, occupied(entry), now)
  end
  return entry.fresh
end

-- Leased units stay charged until their holder settles; what it has spent by then counts as spent before the reset.
local function reset(entry)
  if not entry.state then
    return
  end
  expire(entry)
  entry.state, entry.dirty = algorithms[entry.limit.kind].unseen, true
  for _, r in ipairs(entry.records) do
    r.reset = 1
  end
  if entry.limit.window then
    charge(entry, now, (held_by_others(entry, 0)))
  end
end

local function write(key, entry)
  local instead = entry.instead
  if instead and instead.till + OVERRIDE_KEPT <= now then
    instead = nil
  end
  local parts, fresh = {}, 0
  local limit = entry.limit
  if limit then
    fresh = fresh_after(entry)
    if fresh == 0 and #entry.records == 0 then
      limit = nil
    end
  end
  if not limit and not instead then
    if values[key] then
      redis.call('DEL', KEYS[key])
    end
    return
  end
  parts[1] = struct.pack('<BBBB', VERSION, limit and limit.kind or 0, instead and 1 or 0, limit and #entry.records or 0)
  local ttl = 0
  if limit then
    parts[2] = struct.pack('<ddddddd', limit.a, limit.b, limit.c, limit.d, pack_state(limit.kind, entry.state))
    ttl = fresh
  end
  if instead then
    local l = instead.limit
    parts[#parts + 1] = struct.pack('<dBdddd', instead.till, l.kind, l.a, l.b, l.c, l.d)
    ttl = math.max(ttl, since(instead.till + OVERRIDE_KEPT, now))
  end
  if limit then
    for _, r in ipairs(entry.records) do
      parts[#parts + 1] =
        struct.pack('<dddddddB', r.node, r.sequence, r.epoch, r.at, r.granted, r.spent, r.expiry, r.reset)
      ttl = math.max(ttl, fresh + since(r.expiry, now))
    end
  end
  ttl = math.max(least_ttl, 2 * ceil_div(ttl, 1000))
  redis.call('SET', KEYS[key], table.concat(parts), 'PX', string.format('%.0f', ttl))
end

local replies, op = {}, {}
for i = 1, operation_count do
  local kind, key, limit
  kind, key, limit, op.node, op.sequence, op.epoch, op.spent, op.granted, op.want, op.least, op.nodes, op.debt, place =
    struct.unpack('<BHHddddddddd', data, place)
  op.limit = limits[limit]
  local entry = entry_of(key)
  local status, epoch, granted, available, retry_after = DONE, 0, 0, 0, 0
  entry.fresh = nil
  if entry.newer then
    status = NEWER
  elseif kind == ACQUIRE then
    status, epoch, granted, available, retry_after = acquire(entry, op)
  elseif kind == PEEK then
    status, epoch, granted, available, retry_after = peek(entry, op)
  elseif kind == RESET then
    reset(entry)
  elseif kind == OVERRIDE then
    if op.want > 0 then
      entry.instead = { till = op.want, limit = op.limit }
    elseif entry.instead then
      entry.instead.till = math.min(entry.instead.till, now)
    end
    entry.dirty = true
  else
    return redis.error_reply('TIDEGATE unknown operation')
  end
  local life, capacity, reset_after, held = 0, 0, 0, 0
  if entry.state and kind <= PEEK then
    life, capacity, held = life_of(entry), entry.limit.capacity, held_by_others(entry, op.node)
    reset_after = entry.limit.kind == FIXED_WINDOW and since(window_end(entry), now) or fresh_after(entry)
  end
  replies[i] = struct.pack(
    '<Bddddddddd', status, now, epoch, granted, life, available, capacity, retry_after, reset_after, held
  )
end

for key, entry in pairs(entries) do
  if entry.dirty and not entry.newer then
    write(key, entry)
  end
end
return table.concat(replies)
