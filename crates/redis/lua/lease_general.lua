-- Leases of every kind: overrides, resets, peeks, entries with two limits, and what the fast path does not do.
--
-- `entries` are those that were unpacked here; the fast path leaves them alone.

-- An override is kept this long after its end, in case time goes back.
local OVERRIDE_KEPT = 120000000
-- A charge made before the end of an override is not refunded until this long after it: which limit it used is unknown.
local REFUNDS_END = 60000000
local COUNTERS = 2
-- An override in an entry: its end and its limit; then when it began, if the header says 2 instead of 1.
local INSTEAD, BEGAN = '<dBdddd', '<d'
-- A limit under which no node has asked for this long does not shorten leases. Its counter is kept for as long as it
-- remembers a charge: a node may be silent while it rejects on its own.
local UNUSED = 600000000
local algorithms = { token_bucket, fixed_window, sliding_counter }

local function same(x, y)
  return x == y or x.kind == y.kind and x.a == y.a and x.b == y.b and x.c == y.c and x.d == y.d
end

-- Most entries use a limit of the call.
local function find_limit(kind, a, b, c, d)
  for i = 1, #limits do
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

-- Whether all numbers can occur in an entry.
local function are_valid(...)
  for i = 1, select('#', ...) do
    local number = select(i, ...)
    if not (number >= 0 and number < HIGHEST) then
      return false
    end
  end
  return true
end

local function is_limit(kind, a, b, c, d)
  return are_valid(a, b, c, d) and b > 0
    and (kind == FIXED_WINDOW or kind == SLIDING_COUNTER and c > 0 or kind == TOKEN_BUCKET and c > 0 and d > 0)
end

-- Reads what follows the version; nothing if it is malformed: it is not what the script writes.
local function unpack_parts(packed, entry)
  if #packed < 4 then
    return nil
  end
  local _, counters, overridden, count, at = struct.unpack('<BBBB', packed)
  local size = 4 + counters * struct.size(COUNTER) + (overridden > 0 and struct.size(INSTEAD) or 0)
    + (overridden == 2 and struct.size(BEGAN) or 0) + count * struct.size(RECORD)
  if counters > COUNTERS or overridden > 2 or #packed ~= size then
    return nil
  end
  for i = 1, counters do
    local kind, a, b, c, d, x, y, z, used, from
    kind, a, b, c, d, x, y, z, used, from, at = struct.unpack(COUNTER, packed, at)
    if not (is_limit(kind, a, b, c, d) and are_valid(x, y, z, used, from)) then
      return nil
    end
    entry.counters[i] = {
      limit = find_limit(kind, a, b, c, d), state = unpack_state(kind, x, y, z), used = used, since = from,
    }
  end
  if overridden > 0 then
    local till, k, a, b, c, d
    till, k, a, b, c, d, at = struct.unpack(INSTEAD, packed, at)
    if not (are_valid(till) and is_limit(k, a, b, c, d)) then
      return nil
    end
    entry.instead = { till = till, limit = new_limit(k, a, b, c, d) }
    if overridden == 2 then
      entry.instead.since, at = struct.unpack(BEGAN, packed, at)
      if not are_valid(entry.instead.since) then
        return nil
      end
    end
  end
  for i = 1, count do
    local node, sequence, epoch, granted_at, granted, spent, expiry, was_reset
    node, sequence, epoch, granted_at, granted, spent, expiry, was_reset, at = struct.unpack(RECORD, packed, at)
    if not (are_valid(node, sequence, epoch, granted_at, granted, spent, expiry) and spent <= granted) then
      return nil
    end
    entry.records[i] = {
      node = node, sequence = sequence, epoch = epoch, at = granted_at,
      granted = granted, spent = spent, expiry = expiry, reset = was_reset,
    }
  end
  return entry
end

local function unpack_entry(packed)
  local entry = { counters = {}, records = {} }
  if not packed then
    return entry
  end
  local version = string.byte(packed) or 0
  if version > VERSION then
    entry.left_alone = NEWER
    return entry
  end
  return version == VERSION and unpack_parts(packed, entry)
    or { counters = {}, records = {}, left_alone = MALFORMED }
end

local function entry_of(key)
  local entry = entries[key]
  if not entry then
    entry = unpack_entry(values[key])
    -- What the fast path has changed is written with the rest.
    entry.dirty, left[key] = left[key] ~= nil, nil
    entries[key] = entry
  end
  return entry
end

-- The units that nodes other than `node` can still spend under a limit (in the window of `at`), and the number of these nodes.
local function held_by_others(entry, node, window, at)
  local units, nodes = 0, 0
  for _, r in ipairs(entry.records) do
    if r.node ~= node and (not window or floor_div(r.at, window) == floor_div(at or now, window)) then
      units, nodes = units + r.granted - r.spent, nodes + 1
    end
  end
  return units, nodes
end

-- A counter's state with all leased units charged. Windows charge units when they are granted.
local function occupied(entry, counter)
  if counter.limit.kind ~= TOKEN_BUCKET then
    return counter.state
  end
  local units = held_by_others(entry, 0)
  if units <= 0 then
    return counter.state
  end
  return token_bucket.charge(counter.limit, counter.state, now, units)
end

local function charge(entry, counter, at, units)
  if units > 0 then
    counter.state = algorithms[counter.limit.kind].charge(counter.limit, counter.state, at, units)
    entry.dirty = true
  end
end

-- Charges the buckets; windows were charged with the grant.
local function charge_buckets(entry, at, units)
  for _, counter in ipairs(entry.counters) do
    if counter.limit.kind == TOKEN_BUCKET then
      charge(entry, counter, at, units)
    end
  end
end

local function charge_windows(entry, at, units)
  for _, counter in ipairs(entry.counters) do
    if counter.limit.window then
      charge(entry, counter, at, units)
    end
  end
end

-- Gives units back to the windows in which they were granted.
local function give_back(entry, granted_at, units)
  for _, counter in ipairs(entry.counters) do
    if units > 0 and counter.limit.window and granted_at >= counter.since then
      local refund = algorithms[counter.limit.kind].refund
      counter.state = refund(counter.limit, counter.state, granted_at, now, units)
      entry.dirty = true
    end
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
    if first.reset == 0 then
      charge_buckets(entry, first.expiry, first.granted - first.spent)
    end
    remove(entry, first)
  end
end

-- The longest time for which a charge counts.
local function span_of(limit)
  if limit.kind == TOKEN_BUCKET then
    return ceil_div(limit.capacity * limit.unit, limit.drain) * limit.tick
  end
  return limit.kind == SLIDING_COUNTER and 2 * limit.window or limit.window
end

-- A counter for a limit met for the first time: it starts with the state of the limit used last.
local function new_counter(entry, limit, last)
  local algorithm = algorithms[limit.kind]
  local counter = { limit = limit, state = algorithm.unseen, used = now, since = now }
  if not last then
    return counter
  elseif limit.kind == last.limit.kind then
    counter.state = algorithm.rebase(limit, last.limit, last.state, now)
    if limit.window == last.limit.window then
      counter.since = last.since
    end
  elseif limit.window then
    charge(entry, counter, now, (held_by_others(entry, 0)))
  end
  entry.dirty = true
  return counter
end

-- Selects the counter of the limit that applies now.
local function adopt(entry, limit)
  if entry.instead and now < entry.instead.till then
    limit = entry.instead.limit
  end
  expire(entry)
  local counters, counter = entry.counters, nil
  for i, known in ipairs(counters) do
    if same(known.limit, limit) then
      counter = known
      if i > 1 then
        table.insert(counters, 1, table.remove(counters, i))
        entry.dirty = true
      end
      break
    end
  end
  if not counter then
    counter = new_counter(entry, limit, counters[1])
    counters[COUNTERS] = nil
    table.insert(counters, 1, counter)
  end
  local other = counters[2]
  entry.dirty = entry.dirty or other and since(now, counter.used) >= UNUSED / 10
  counter.used = now
  if other and since(now, other.used) >= math.max(UNUSED, span_of(other.limit)) then
    counters[2], entry.dirty = nil, true
  end
end

local function window_end(counter)
  local limit = counter.limit
  local window = math.max(counter.state.window, floor_div(now, limit.window))
  return math.min((window + 1) * limit.window, MAX)
end

-- How long units granted now may be spent: within the same window of every limit in use.
local function life_of(entry)
  local life = MAX
  for _, counter in ipairs(entry.counters) do
    local limit = counter.limit
    if since(now, counter.used) >= UNUSED then
      -- No node uses it.
    elseif limit.kind == TOKEN_BUCKET then
      life = math.min(life, limit.life)
    else
      life = math.min(life, since(window_end(counter), now))
    end
  end
  if entry.instead and now < entry.instead.till then
    life = math.min(life, entry.instead.till - now)
  end
  return life
end

-- How long after its end a lease can be given back: units of a sliding window also in the window after it, and units that
-- were spendable for one window of a limit only also in the longer window of the other.
local function grace_of(entry)
  local first, second = entry.counters[1].limit, entry.counters[2] and entry.counters[2].limit
  if second and first.window and second.window then
    return math.max(first.window, second.window)
  end
  return first.kind == SLIDING_COUNTER and first.window or 0
end

-- Whether the window of a record is over, for a limit in use.
local function is_over(entry, record)
  for _, counter in ipairs(entry.counters) do
    local window = counter.limit.window
    if window and since(now, counter.used) < UNUSED
      and floor_div(record.at, window) ~= floor_div(window_end(counter) - 1, window) then
      return true
    end
  end
  return false
end

-- Applies what the node reports: what it has spent, and which units it still knows. Units that it does not know will never
-- be spent: it has released them, or never received them. Returns the record, if it can take more units.
local function settle(entry, record, op)
  if record.epoch ~= op.epoch then
    -- The node knows every lease up to `op.epoch` and none after it: a newer one never reached the node; an older one was
    -- forgotten by the node, perhaps after it was spent.
    local unspent = record.granted - record.spent
    if record.epoch > op.epoch then
      give_back(entry, record.at, unspent)
    else
      charge_buckets(entry, now, unspent)
    end
    remove(entry, record)
    return nil
  end
  local spent, released = op.spent - record.spent, record.granted - op.granted
  give_back(entry, record.at, released + (record.reset == 1 and spent or 0))
  charge_windows(entry, record.at, -released)
  if record.reset == 0 then
    charge_buckets(entry, now, spent)
  end
  record.sequence, record.spent, record.granted, record.reset = op.sequence, op.spent, op.granted, 0
  entry.dirty = true
  if record.granted <= record.spent then
    remove(entry, record)
    return nil
  elseif is_over(entry, record) then
    -- The node may have spent the rest since it sent the request.
    charge_buckets(entry, now, record.granted - record.spent)
    remove(entry, record)
    return nil
  end
  return record
end

local function size_of_grant(entry, record, op, available)
  if not record and #entry.records >= MAX_RECORDS then
    return 0
  end
  local _, others = held_by_others(entry, op.node, entry.counters[1].limit.window)
  return block_size(available, record ~= nil, others, op.want, op.least, op.nodes)
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
  charge_buckets(entry, now, op.debt)
  charge_windows(entry, now, op.debt)
  local counter = entry.counters[1]
  local limit, state = counter.limit, occupied(entry, counter)
  local judge = algorithms[limit.kind].judge
  local available = judge(limit, state, now, 0).remaining
  local units = size_of_grant(entry, record, op, available)
  if limit.window and floor_div(now, limit.window) < counter.state.window then
    -- Time went back: units of the later window would be spent in the earlier one.
    units = 0
  end
  if units > 0 then
    charge_windows(entry, now, units)
    if not record then
      record = { node = op.node, sequence = op.sequence, epoch = op.sequence, at = now, granted = 0, spent = 0, reset = 0 }
      table.insert(entry.records, record)
    end
    record.granted = record.granted + units
    entry.dirty = true
  end
  if record then
    record.expiry = now + life_of(entry) + grace_of(entry)
  end
  local retry_after = 0
  if units < op.least then
    retry_after = judge(limit, state, now, op.least).span
  end
  return DONE, record and record.epoch or 0, units, available - units, retry_after
end

-- What is available, and the time until the cost fits.
local function peek(entry, op)
  adopt(entry, op.limit)
  local counter = entry.counters[1]
  local limit, state, judge = counter.limit, occupied(entry, counter), algorithms[counter.limit.kind].judge
  return DONE, 0, 0, judge(limit, state, now, 0).remaining, judge(limit, state, now, op.least).span
end

-- The time until a counter equals an unused one, if all leased units are spent.
local function fresh_after(entry, counter)
  return algorithms[counter.limit.kind].until_fresh(counter.limit, occupied(entry, counter), now)
end

-- Leased units stay charged until their holder settles; what it has spent by then counts as spent before the reset.
local function reset(entry)
  expire(entry)
  for _, r in ipairs(entry.records) do
    r.reset = 1
  end
  for _, counter in ipairs(entry.counters) do
    counter.state, entry.dirty = algorithms[counter.limit.kind].unseen, true
    if counter.limit.window then
      charge(entry, counter, now, (held_by_others(entry, 0, counter.limit.window)))
    end
  end
end

local function override(entry, op)
  local known = entry.instead
  local is_same = known and op.want > 0 and now < known.till and same(known.limit, op.limit)
  if op.debt == 1 and is_same then
    return
  elseif op.want > 0 then
    entry.instead = { till = op.want, limit = op.limit, since = is_same and known.since or now }
  elseif known then
    known.till = math.min(known.till, now)
  end
  entry.dirty = true
end

-- The units that nodes have reported as spent in the window of `at`.
local function spent_in_window(entry, counter, at)
  local state, window, count = counter.state, floor_div(at, counter.limit.window), 0
  if state.window == window then
    count = state.count or state.current
  elseif state.window == window + 1 then
    count = state.previous or 0
  end
  return count - held_by_others(entry, 0, counter.limit.window, at)
end

-- Gives back units that were spent at `charged` to a counter. What is leased stays charged. Returns whether the counter
-- contained any, and the units that are not given back because other nodes may have spent them without a report.
local function give_back_spent(entry, counter, node, charged, units)
  local limit, state = counter.limit, counter.state
  local refund, unreported, contains = algorithms[limit.kind].refund, 0, false
  local held = held_by_others(entry, node, limit.window, charged)
  if limit.window then
    local spent = math.max(math.min(units, spent_in_window(entry, counter, charged)), 0)
    unreported = math.min(units - spent, held)
    counter.state, contains = refund(limit, state, charged, now, spent)
  else
    local level, ticks = level_at(limit, state, now), floor_div(now, limit.tick) - floor_div(charged, limit.tick)
    if held == 0 or level + math.max(ticks, 0) * limit.drain >= filled(limit, 0, units) then
      counter.state, contains = refund(limit, state, charged, now, units)
    else
      -- Whole units, so that nothing is lost if the others are given back later.
      local reported = floor_div(level, limit.unit)
      unreported = units - reported
      counter.state, contains = without(limit, state, now, reported * limit.unit)
    end
  end
  entry.dirty = entry.dirty or contains
  return contains, unreported
end

-- The same for all counters of the limit, at `op.want`. Returns 1 if the counter that was used last contained any units.
local function refund(entry, op)
  local instead, charged, limit, unreported, contains = entry.instead, op.want, op.limit, 0, false
  if instead and charged < instead.till and now < instead.till + REFUNDS_END then
    if not instead.since or charged <= instead.since or now >= instead.till then
      return 0, 0
    end
    limit = instead.limit
  end
  expire(entry)
  for i, counter in ipairs(entry.counters) do
    if same(counter.limit, limit) and charged >= counter.since then
      local contained, missing = give_back_spent(entry, counter, op.node, charged, op.debt)
      contains, unreported = contains or i == 1 and contained, math.max(unreported, missing)
    end
  end
  return contains and 1 or 0, unreported
end

local function write(key, entry)
  local instead, counters = entry.instead, entry.counters
  if instead and instead.till + OVERRIDE_KEPT <= now then
    instead = nil
  end
  local fresh = 0
  for _, counter in ipairs(counters) do
    fresh = math.max(fresh, fresh_after(entry, counter))
  end
  if fresh == 0 and #entry.records == 0 then
    counters = {}
  end
  if #counters == 0 and not instead then
    if values[key] then
      redis.call('DEL', KEYS[key])
    end
    return
  end
  local parts, ttl = {}, fresh
  parts[1] = struct.pack('<BBBB', VERSION, #counters, instead and (instead.since and 2 or 1) or 0, #entry.records)
  for _, counter in ipairs(counters) do
    local l = counter.limit
    local x, y, z = pack_state(l.kind, counter.state)
    parts[#parts + 1] =
      struct.pack(COUNTER, l.kind, l.a, l.b, l.c, l.d, x, y, z, counter.used, counter.since)
  end
  if instead then
    local l = instead.limit
    parts[#parts + 1] = struct.pack(INSTEAD, instead.till, l.kind, l.a, l.b, l.c, l.d)
    if instead.since then
      parts[#parts + 1] = struct.pack(BEGAN, instead.since)
    end
    ttl = math.max(ttl, since(instead.till + OVERRIDE_KEPT, now))
  end
  for _, r in ipairs(entry.records) do
    parts[#parts + 1] =
      struct.pack(RECORD, r.node, r.sequence, r.epoch, r.at, r.granted, r.spent, r.expiry, r.reset)
    ttl = math.max(ttl, fresh + since(r.expiry, now))
  end
  ttl = math.max(least_ttl, 2 * ceil_div(ttl, 1000))
  redis.call('SET', KEYS[key], table.concat(parts), 'PX', string.format('%.0f', ttl))
end

local function run(kind, key, op)
  local entry = entry_of(key)
  local status, epoch, granted, available, retry_after = DONE, 0, 0, 0, 0
  local life, capacity, reset_after, held = 0, 0, 0, 0
  if kind == RESET and entry.left_alone == MALFORMED then
    -- Nothing of it can be kept.
    entry.left_alone, entry.dirty = nil, true
  end
  if entry.left_alone then
    status = entry.left_alone
  elseif kind == ACQUIRE then
    status, epoch, granted, available, retry_after = acquire(entry, op)
  elseif kind == PEEK then
    status, epoch, granted, available, retry_after = peek(entry, op)
  elseif kind == RESET then
    reset(entry)
  elseif kind == OVERRIDE then
    override(entry, op)
  elseif kind == REFUND then
    available, held = refund(entry, op)
  else
    error('TIDEGATE unknown operation')
  end
  local x, y, z = HIGHEST, 0, 0
  local counter = entry.counters[1]
  if counter and kind <= PEEK then
    life, capacity, held = life_of(entry), counter.limit.capacity, held_by_others(entry, op.node, counter.limit.window)
    reset_after = counter.limit.kind == FIXED_WINDOW and since(window_end(counter), now) or fresh_after(entry, counter)
    if same(counter.limit, op.limit) then
      x, y, z = pack_state(counter.limit.kind, occupied(entry, counter))
    end
  end
  return struct.pack(
    REPLY, status, now, epoch, granted, life, available, capacity, retry_after, reset_after, held, x, y, z
  )
end

local function write_all()
  for key, entry in pairs(entries) do
    if entry.dirty and not entry.left_alone then
      write(key, entry)
    end
  end
end

return run, write_all
