-- Exchanges counts between nodes that each keep a copy of a counter.
--
-- KEYS     the counters, without duplicates
-- ARGV     1 now in microseconds, or "" for this server's own time
--          2 the shortest time to live of a key, in milliseconds
--          3 the operations, packed, little-endian:
--              kind (1 byte: 1 exchange, 2 reset), key (2 bytes: its index in KEYS), and for an exchange
--              algorithm (1 byte), then doubles: limit (4), node, number, epoch, delta (4)
--            limit   token_bucket: capacity, tick, unit, drain; fixed_window: capacity, length;
--                    sliding_window_counter: capacity, tick, length
--            number  the exchange's number at the node; 0 if there is no delta
--            delta   token_bucket: subunits added, the level they produce on their own (tick, part), time (us);
--                    windows: window, units of the window before, units
-- Reply    packed doubles: now, then for each operation: status (0 done, 1 the entry has a newer format), epoch (us),
--          and for an exchange the state before and after the delta, three numbers each
--
-- An entry is the format (1 byte), then packed: epoch, the number of counters, for each counter: algorithm, limit (4), state
-- (3), used, and for each node whose delta was applied: node, number, time. It has no counter if it was reset before the
-- first exchange, and otherwise one for each of the last two limits. While nodes with the old and nodes with the new limit of
-- a rule alternate, each delta is merged into both, so neither counter starts again. `used` is the time of the last exchange
-- under the limit, about.
--
-- A delta is applied once, however often it arrives: a node repeats it with the same number until it gets the reply. A node's
-- number is kept until each of its deltas would be too old to be applied. A delta of an epoch before the last reset is
-- dropped, and so is one of a window that is over, or of a bucket that is old enough to have drained.

local FORMAT = 1
local EXCHANGE = 1
local TOKEN_BUCKET, FIXED_WINDOW, SLIDING_COUNTER = 1, 2, 3
-- How long a reset counter without a limit is kept, in milliseconds.
local RESET_LIFE = 3600000
local COUNTERS = 2
-- A limit without an exchange for this long, and for as long as it remembers a charge, is no longer in use on any node.
local UNUSED = 600000000
-- `used` is renewed at least this often.
local USED_STEP = 60000000
-- Numbers of nodes are kept this much longer than necessary, in microseconds.
local NUMBER_MARGIN = 60000000
-- Numbers that are packed or unpacked at once: a function of Lua takes and returns fewer than 8,000.
local CHUNK = 3000
-- An entry outlives the changes of its nodes by this much, in milliseconds.
local NUMBER_LIFE = 1000

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- floor(part / drain) ticks and the rest are added to the time at which the bucket is empty; the result is not before the
-- level that the delta produces on its own.
local function merge_bucket(limit, state, delta)
  local drain, added = limit.drain, math.abs(delta[1])
  local whole, rest = floor_div(added, drain), math.fmod(added, drain)
  local tick, part = state.tick, state.part
  if delta[1] >= 0 then
    tick = tick + whole
    if part >= drain - rest then
      tick, part = tick + 1, part - (drain - rest)
    else
      part = part + rest
    end
  else
    tick = tick - whole
    if part >= rest then
      part = part - rest
    else
      tick, part = tick - 1, part + (drain - rest)
    end
  end
  if delta[2] > tick or (delta[2] == tick and delta[3] > part) then
    tick, part = delta[2], delta[3]
  end
  if tick > MAX then
    tick, part = MAX + 1, 0
  end
  return { tick = tick, part = part }
end

local function merged_count(count, units, max)
  return math.max(math.min(count + units, max), 0)
end

local algorithms = {
  [TOKEN_BUCKET] = {
    rules = token_bucket,
    limit = function(a, b, c, d)
      return { capacity = a, tick = b, unit = c, drain = d }
    end,
    state = function(a, b)
      return { tick = a, part = b }
    end,
    numbers = function(state)
      return state.tick, state.part, 0
    end,
    span = function(limit)
      return ceil_div(limit.capacity * limit.unit, limit.drain) * limit.tick
    end,
    merge = function(limit, state, delta, span)
      if since(now, delta[4]) >= span then
        return state
      end
      return merge_bucket(limit, state, delta)
    end,
  },
  [FIXED_WINDOW] = {
    rules = fixed_window,
    limit = function(a, b)
      return { capacity = a, length = b }
    end,
    state = function(a, b)
      return { window = a, count = b }
    end,
    numbers = function(state)
      return state.window, state.count, 0
    end,
    span = function(limit)
      return limit.length
    end,
    window = function(limit)
      return limit.length
    end,
    merge = function(_, state, delta)
      if delta[1] < state.window then
        return state
      end
      local count = delta[1] == state.window and state.count or 0
      return { window = delta[1], count = merged_count(count, delta[3], MAX) }
    end,
  },
  [SLIDING_COUNTER] = {
    rules = sliding_counter,
    limit = function(a, b, c)
      return { capacity = a, tick = b, length = c }
    end,
    state = function(a, b, c)
      return { window = a, previous = b, current = c }
    end,
    numbers = function(state)
      return state.window, state.previous, state.current
    end,
    span = function(limit)
      return 2 * limit.length * limit.tick
    end,
    window = function(limit)
      return limit.length * limit.tick
    end,
    merge = function(limit, state, delta)
      local max, later = floor_div(MAX, limit.length), delta[1] - state.window
      local previous, current = state.previous, state.current
      if later == -1 then
        previous = merged_count(previous, delta[3], max)
      elseif later >= 0 then
        if later == 1 then
          previous, current = current, 0
        elseif later > 1 then
          previous, current = 0, 0
        end
        previous, current = merged_count(previous, delta[2], max), merged_count(current, delta[3], max)
      end
      return { window = math.max(state.window, delta[1]), previous = previous, current = current }
    end,
  },
}

-- The changes of a delta with their times: { at, units }, and for a bucket the subunits instead of the units.
local function changes_of(kind, limit, delta)
  if kind == TOKEN_BUCKET then
    return { { at = math.min(delta[4], now), subunits = delta[1] } }
  end
  local window = algorithms[kind].window(limit)
  local last = { at = math.min((delta[1] + 1) * window - 1, now), units = delta[3] }
  if kind == FIXED_WINDOW or delta[2] == 0 then
    return { last }
  end
  return { { at = math.min(delta[1] * window - 1, now), units = delta[2] }, last }
end

-- A change of the algorithm `old_kind` as a delta under another limit.
local function delta_under(kind, limit, change, old_kind, old)
  if kind == TOKEN_BUCKET then
    local size
    if old_kind == TOKEN_BUCKET then
      size = mul_div_ceil(math.abs(change.subunits), limit.unit, old.unit)
    else
      size = filled(limit, 0, math.abs(change.units))
    end
    if (change.subunits or change.units) < 0 then
      return { -size, 0, 0, change.at }
    end
    local alone = with_level(limit, size, change.at)
    return { size, alone.tick, alone.part, change.at }
  end
  local units = change.units
  if not units then
    units = ceil_div(math.abs(change.subunits), old.unit)
    units = change.subunits < 0 and -units or units
  end
  return { floor_div(change.at, algorithms[kind].window(limit)), 0, units }
end

-- Merges a delta that was counted under the limit of `own` into the counter of another limit.
local function merge_other(counter, own, delta)
  local algorithm, limit = algorithms[counter.kind], counter.limit
  if counter.kind == own.kind and limit.tick == own.limit.tick and limit.unit == own.limit.unit
    and limit.drain == own.limit.drain and limit.length == own.limit.length then
    -- The same rate or window: the same delta.
    counter.state = algorithm.merge(limit, counter.state, delta, algorithm.span(limit))
    return
  end
  for _, change in ipairs(changes_of(own.kind, own.limit, delta)) do
    local converted = delta_under(counter.kind, limit, change, own.kind, own.limit)
    counter.state = algorithm.merge(limit, counter.state, converted, algorithm.span(limit))
  end
end

local function new_counter(kind, raw)
  local algorithm = algorithms[kind]
  local limit = algorithm.limit(raw[1], raw[2], raw[3], raw[4])
  return { kind = kind, raw = raw, limit = limit, state = algorithm.rules.unseen, used = now }
end

-- The numbers of a packed entry.
local function unpack_numbers(packed)
  local f, place = {}, 1
  repeat
    local part = { cmsgpack.unpack_limit(packed, CHUNK, place) }
    place = part[1]
    for i = 2, #part do
      f[#f + 1] = part[i]
    end
  until place < 0
  return f
end

local function pack_numbers(f)
  local parts = {}
  for i = 1, #f, CHUNK do
    parts[#parts + 1] = cmsgpack.pack(unpack(f, i, math.min(i + CHUNK - 1, #f)))
  end
  return table.concat(parts)
end

local function read_fields(entry, packed)
  local f, at = unpack_numbers(packed), 3
  entry.epoch = f[1]
  for i = 1, f[2] do
    local counter = new_counter(f[at], { f[at + 1], f[at + 2], f[at + 3], f[at + 4] })
    counter.state, counter.used = algorithms[f[at]].state(f[at + 5], f[at + 6], f[at + 7]), f[at + 8]
    entry.counters[i], at = counter, at + 9
  end
  for i = at, #f, 3 do
    entry.nodes[f[i]] = { number = f[i + 1], at = f[i + 2] }
  end
end

-- Each entry is read once and written once, even if several operations use it.
local entries = {}

local function entry_of(key)
  local entry = entries[key]
  if entry then
    return entry
  end
  entry = { epoch = 0, counters = {}, nodes = {} }
  local packed = redis.pcall('GET', KEYS[key])
  if packed then
    -- Anything but a string was not written by the script either.
    if type(packed) ~= 'string' or string.byte(packed) ~= FORMAT then
      entry.is_newer = true
    else
      -- An entry that the script did not write is an error of its own counter only.
      entry.is_newer = not pcall(read_fields, entry, packed)
    end
  end
  entries[key] = entry
  return entry
end

local function write(key, entry)
  local ttl, span = tonumber(ARGV[2]), 0
  local f = { entry.epoch, #entry.counters }
  for _, counter in ipairs(entry.counters) do
    local algorithm, raw = algorithms[counter.kind], counter.raw
    local a, b, c = algorithm.numbers(counter.state)
    for _, number in ipairs({ counter.kind, raw[1], raw[2], raw[3], raw[4], a, b, c, counter.used }) do
      f[#f + 1] = number
    end
    span = math.max(span, algorithm.span(counter.limit))
    ttl = math.max(ttl, 2 * ceil_div(algorithm.rules.until_fresh(counter.limit, counter.state, now), 1000))
  end
  if #entry.counters == 0 then
    ttl = math.max(ttl, RESET_LIFE)
  elseif entry.epoch > 0 then
    ttl = math.max(ttl, 2 * ceil_div(span, 1000))
  end
  for node, last in pairs(entry.nodes) do
    if since(now, last.at) <= 2 * span + NUMBER_MARGIN then
      -- Without its number, a repeated delta would be applied again until it is too old.
      ttl = math.max(ttl, ceil_div(since(last.at + span, now), 1000) + NUMBER_LIFE)
      f[#f + 1], f[#f + 2], f[#f + 3] = node, last.number, last.at
    end
  end
  redis.call('SET', KEYS[key], string.char(FORMAT) .. pack_numbers(f), 'PX', string.format('%.0f', ttl))
end

local function same(x, y)
  return x.kind == y.kind and x.raw[1] == y.raw[1] and x.raw[2] == y.raw[2] and x.raw[3] == y.raw[3] and x.raw[4] == y.raw[4]
end

-- The counter of a limit. A limit met for the first time starts with the state of the limit used last.
local function counter_of(entry, kind, raw)
  local counters, counter = entry.counters, new_counter(kind, raw)
  for i, known in ipairs(counters) do
    if same(known, counter) then
      if since(now, known.used) >= USED_STEP then
        entry.is_dirty = true
      end
      table.remove(counters, i)
      table.insert(counters, 1, known)
      return known
    end
  end
  local last = counters[1]
  if last then
    if last.kind == kind then
      counter.state = algorithms[kind].rules.rebase(counter.limit, last.limit, last.state, now)
    end
    counters[COUNTERS] = nil
    entry.is_dirty = true
  end
  table.insert(counters, 1, counter)
  return counter
end

local function exchange(entry, kind, raw, node, number, epoch, delta)
  local counter, algorithm = counter_of(entry, kind, raw), algorithms[kind]
  local before, last, other = counter.state, entry.nodes[node], entry.counters[2]
  counter.used = now
  if other and since(now, other.used) >= math.max(UNUSED, algorithms[other.kind].span(other.limit)) then
    entry.counters[2], other = nil, nil
  end
  if number > 0 and not (last and number <= last.number) then
    if epoch >= entry.epoch then
      counter.state = algorithm.merge(counter.limit, before, delta, algorithm.span(counter.limit))
      if other then
        merge_other(other, counter, delta)
      end
    end
    entry.nodes[node] = { number = number, at = now }
    entry.is_dirty = true
  end
  local a, b, c = algorithm.numbers(before)
  return struct.pack('<dddddddd', 0, entry.epoch, a, b, c, algorithm.numbers(counter.state))
end

local function reset(entry)
  for _, counter in ipairs(entry.counters) do
    counter.state = algorithms[counter.kind].rules.unseen
  end
  entry.epoch, entry.is_dirty = math.max(now, entry.epoch + 1), true
  return struct.pack('<dd', 0, entry.epoch)
end

local operations, place = ARGV[3], 1
local reply = { struct.pack('<d', now) }
while place <= #operations do
  local operation, key
  operation, key, place = struct.unpack('<BI2', operations, place)
  local entry = entry_of(key)
  if operation == EXCHANGE then
    local kind, a, b, c, d, node, number, epoch, e, f, g, h
    kind, a, b, c, d, node, number, epoch, e, f, g, h, place = struct.unpack('<Bddddddddddd', operations, place)
    if entry.is_newer then
      reply[#reply + 1] = struct.pack('<dddddddd', 1, 0, 0, 0, 0, 0, 0, 0)
    else
      reply[#reply + 1] = exchange(entry, kind, { a, b, c, d }, node, number, epoch, { e, f, g, h })
    end
  elseif entry.is_newer then
    reply[#reply + 1] = struct.pack('<dd', 1, 0)
  else
    reply[#reply + 1] = reset(entry)
  end
end

for key, entry in pairs(entries) do
  if entry.is_dirty then
    write(key, entry)
  end
end
return table.concat(reply)
