-- Leases, the fast path: a node acquires units of a counter whose entry has one limit, the one of the request, and no
-- override. It does the same as `acquire` in `lease_general.lua`, but on the packed entry and with neither tables nor
-- closures for each request, because most of what a lease costs Redis is spent here.

local byte, sub, char, pack, read = string.byte, string.sub, string.char, struct.pack, struct.unpack
local fmod, max, min = math.fmod, math.max, math.min

-- The start of such an entry, and the places of the limit, the state and the first record in it.
local ENTRY, LIMIT_AT, STATE_AT, RECORDS_AT = char(VERSION, 1, 0), 5, 38, 78
local RECORD_BYTES = struct.size(RECORD)
-- Buckets with a higher level need computations that saturate.
local LARGE = 2 ^ 50

local data = ARGV[1]
local now, least_ttl, limit_count, operation_count, place = read('<ddHH', data)
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local limits = {}
for i = 1, limit_count do
  local kind, a, b, c, d, after = read(LIMIT, data, place)
  local limit = new_limit(kind, a, b, c, d)
  limit.packed = sub(data, place, after - 1)
  if kind == TOKEN_BUCKET then
    limit.tick_now, limit.full = (now - fmod(now, b)) / b, a * c
    limit.grace = 0
  else
    limit.window_now = (now - fmod(now, limit.window)) / limit.window
    limit.life = min((limit.window_now + 1) * limit.window, MAX) - now
    -- Units of a sliding window can be given back in the window after it, too.
    limit.grace = kind == SLIDING_COUNTER and limit.window or 0
    limit.left = limit.length
    if kind == SLIDING_COUNTER then
      limit.left = limit.length - ((now - fmod(now, b)) / b - limit.window_now * c)
    end
  end
  limits[i], place = limit, after
end

-- Each entry is read once and written once, even if several operations use it.
local values = redis.call('MGET', unpack(KEYS))
-- The keys that the fast path has changed, and the time to live of each in milliseconds (0: it is deleted).
local changed, left = {}, {}
local entries = {}

-- The time until `cost` fits into the windows.
local function until_fits(limit, previous, current, cost)
  if limit.kind == FIXED_WINDOW then
    return limit.life
  end
  local tick = tick_that_fits(limit, limit.window_now, previous, current, cost)
  return max(min(tick * limit.tick, MAX) - now, 0)
end

-- The time until the level of a bucket is at most `most`, which is smaller.
local function until_at_most(limit, level, most)
  local part = fmod(level, limit.drain)
  local tick = tick_at_most(limit.drain, limit.tick_now + (level - part) / limit.drain, part, most)
  return max(tick * limit.tick - now, 0)
end

-- The reply to a request for units, or nothing if it needs the general path; then nothing has changed.
local function acquire_fast(key, limit, node, sequence, epoch, spent, granted, want, least, nodes)
  local value, is_bucket = values[key], limit.kind == TOKEN_BUCKET
  local x, y, z, first, count = 0, 0, 0, now, 0
  if value then
    if sub(value, 1, 3) ~= ENTRY or sub(value, LIMIT_AT, STATE_AT - 1) ~= limit.packed then
      return nil
    end
    count = byte(value, 4)
    if #value ~= RECORDS_AT - 1 + count * RECORD_BYTES or count == MAX_RECORDS then
      return nil
    end
    local used
    x, y, z, used, first = read('<ddddd', value, STATE_AT)
    -- Time may have gone back. The general path rejects numbers that are not valid.
    if not (used >= 0 and used <= now and first >= 0 and first <= now)
      or not (x >= 0 and y >= 0 and z >= 0 and x + y + z < HIGHEST)
      or not is_bucket and x > limit.window_now then
      return nil
    end
  end

  -- The records of other nodes are kept as they are.
  local kept, kept_count, others, held, longest, is_changed = '', 0, 0, 0, 0, false
  local own, own_at, own_granted, own_spent = nil, now, 0, 0
  local at = RECORDS_AT
  for _ = 1, count do
    local r_node, r_sequence, r_epoch, r_at, r_granted, r_spent, r_expiry, r_reset = read(RECORD, value, at)
    if not (r_at >= 0 and r_spent >= 0 and r_granted >= r_spent and r_at + r_granted + r_expiry < HIGHEST) then
      return nil
    elseif r_expiry <= now then
      -- A lease that ends before its window was granted under an override.
      if is_bucket or (r_at - fmod(r_at, limit.window)) / limit.window == limit.window_now then
        return nil
      end
      is_changed = true
    elseif r_node == node then
      if sequence <= r_sequence or epoch ~= r_epoch or r_reset ~= 0 or granted > r_granted or spent < r_spent then
        return nil
      end
      own, own_at, own_granted, own_spent, is_changed = r_epoch, r_at, r_granted, r_spent, true
    else
      kept, kept_count = kept .. sub(value, at, at + RECORD_BYTES - 1), kept_count + 1
      longest = max(longest, r_expiry)
      if is_bucket or (r_at - fmod(r_at, limit.window)) / limit.window == limit.window_now then
        held, others = held + r_granted - r_spent, others + 1
      end
    end
    at = at + RECORD_BYTES
  end
  local has_settled = own ~= nil

  local available, level, previous, current
  if is_bucket then
    level = x >= limit.tick_now and (x - limit.tick_now) * limit.drain + y or 0
    if has_settled and spent > own_spent then
      level = level + (spent - own_spent) * limit.unit
      y = fmod(level, limit.drain)
      x = limit.tick_now + (level - y) / limit.drain
    end
    if has_settled and granted <= spent then
      own = nil
    end
    -- What is leased is occupied.
    level = level + (held + (own and granted - spent or 0)) * limit.unit
    local highest = 2 * max(level, limit.full)
    if highest > LARGE or (limit.tick_now + highest / limit.drain + 2) * limit.tick > MAX then
      return nil
    end
    local room = max(limit.full - level, 0)
    available = (room - fmod(room, limit.unit)) / limit.unit
  else
    previous, current = 0, y
    if limit.kind == SLIDING_COUNTER then
      previous, current = y, z
    end
    if x < limit.window_now then
      previous, current = x + 1 == limit.window_now and current or 0, 0
    end
    if has_settled then
      local window, released = (own_at - fmod(own_at, limit.window)) / limit.window, own_granted - granted
      if own_at < first then
        released = 0
      end
      if window == limit.window_now then
        current = max(current - released, 0)
      elseif window + 1 == limit.window_now then
        previous = max(previous - released, 0)
      end
      if granted <= spent or window ~= limit.window_now then
        own = nil
      end
    end
    local used = current
    if limit.kind == FIXED_WINDOW then
      previous = 0
    else
      used = used + share_of(limit.length, previous, limit.left)
    end
    available = max(limit.capacity - used, 0)
  end

  local units = block_size(available, own ~= nil, others, want, least, nodes)
  local retry_after = 0
  if units < least and least <= limit.capacity then
    retry_after = is_bucket and until_at_most(limit, level, limit.full - least * limit.unit)
      or until_fits(limit, previous, current, least)
  end
  if own then
    own_granted, own_spent = granted, spent
  elseif units > 0 then
    own, own_at, own_granted, own_spent = sequence, now, 0, 0
  end
  is_changed = is_changed or units > 0
  own_granted = own_granted + units

  -- The time until the counter equals an unused one, if all leased units are spent.
  local fresh, reset_after, all_x, all_y, all_z
  if is_bucket then
    level = level + units * limit.unit
    fresh = level > 0 and until_at_most(limit, level, 0) or 0
    reset_after = fresh
    all_y = fmod(level, limit.drain)
    all_x, all_z = limit.tick_now + (level - all_y) / limit.drain, 0
  elseif limit.kind == FIXED_WINDOW then
    x, y, z = limit.window_now, current + units, 0
    reset_after = limit.life
    fresh = y > 0 and limit.life or 0
  else
    x, y, z = limit.window_now, previous, current + units
    local product = y * max(limit.left, 0)
    fresh = (product >= limit.length or z > 0) and until_fits(limit, y, z, limit.capacity) or 0
    reset_after = fresh
  end
  if not is_bucket then
    all_x, all_y, all_z = x, y, z
  end

  local is_unused = fresh == 0 and not own and kept_count == 0
  if is_unused and #KEYS < operation_count then
    -- The general path may use the key again in this call. It must know whether Redis has it, and under which limit.
    return nil
  end
  if is_changed then
    local expiry = now + limit.life + limit.grace
    local ttl = fresh + (own and max(longest, expiry) or max(longest, now)) - now
    if not left[key] then
      changed[#changed + 1] = key
    end
    if is_unused then
      values[key], left[key] = false, 0
    else
      local record = own and pack(RECORD, node, sequence, own, own_at, own_granted, own_spent, expiry, 0) or ''
      values[key] = ENTRY .. char(kept_count + (own and 1 or 0)) .. limit.packed
        .. pack('<ddddd', x, y, z, now, first) .. kept .. record
      left[key] = max(least_ttl, 2 * math.ceil(ttl / 1000))
    end
  end
  return pack(
    REPLY, DONE, now, own or 0, units, limit.life, available - units, limit.capacity, retry_after, reset_after, held,
    all_x, all_y, all_z
  )
end

local replies, run, write_all = {}, nil, nil
for i = 1, operation_count do
  local kind, key, index, node, sequence, epoch, spent, granted, want, least, nodes, debt, after =
    read(OPERATION, data, place)
  local reply
  if kind == ACQUIRE and debt == 0 and want >= least and not entries[key] then
    reply = acquire_fast(key, limits[index], node, sequence, epoch, spent, granted, want, least, nodes)
  end
  if not reply then
    if not run then
      run, write_all = general(now, least_ttl, limits, values, left, entries)
    end
    reply = run(kind, key, {
      limit = limits[index], node = node, sequence = sequence, epoch = epoch, spent = spent, granted = granted,
      want = want, least = least, nodes = nodes, debt = debt,
    })
  end
  replies[i], place = reply, after
end

for _, key in ipairs(changed) do
  local ttl = left[key]
  if ttl == 0 then
    redis.call('DEL', KEYS[key])
  elseif ttl then
    redis.call('SET', KEYS[key], values[key], 'PX', ttl)
  end
end
if write_all then
  write_all()
end
return table.concat(replies)
