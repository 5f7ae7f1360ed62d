local byte, sub, pack, read, fmod = string.byte, string.sub, struct.pack, struct.unpack, math.fmod

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local min_ttl, operations = tonumber(ARGV[2]), ARGV[4]
-- Each entry is read once and written once, even if several checks or operations use it.
local values = redis.call('MGET', unpack(KEYS, 1, tonumber(ARGV[5]) or #KEYS))
local limits = read_limits(ARGV[3])

local loaded = {}
local function algorithm_of(kind)
  local algorithm = loaded[kind]
  if not algorithm then
    algorithm = load_algorithm(kind)
    loaded[kind] = algorithm
  end
  return algorithm
end

local run, write_all
-- The keys that the fast path has changed, and the time until each is fresh.
local changed, left = {}, {}
local replies, count = { pack('<I7', now) }, 1
local at, size = 1, #operations
local current, blob, length, whole, format, unit, drain, tick_length, full, tick_now, latest

while at <= size do
  local code, high, low, index, cost = byte(operations, at, at + 4)
  local reply
  if code == DECIDE_ONE and limits[index].algorithm ~= TOKEN_BUCKET then
    -- One binding check of another algorithm whose entry holds nothing else.
    local limit, key = limits[index], high * 256 + low
    local kind, value, state = limit.algorithm, values[key], nil
    limit.whole = limit.whole or #limit.blob + struct.size(limit.format)
    if not value then
      state = algorithm_of(kind).unseen
    elseif sub(value, 1, #limit.blob) == limit.blob and #value >= limit.whole then
      local a, b, c = read(limit.format, value, #limit.blob + 1)
      if kind == FIXED_WINDOW then
        state = { window = a, count = b }
      elseif kind == SLIDING_COUNTER then
        state = { window = a, previous = b, current = c }
      else
        state = { tick = a, part = limit.drain == 1 and 0 or b }
      end
    end
    if state then
      local algorithm = algorithm_of(kind)
      local o = algorithm.judge(limit, state, now, cost)
      if o.verdict == 0 then
        state = algorithm.charge(limit, state, now, cost)
        if not left[key] then
          changed[#changed + 1] = key
        end
        left[key] = o.reset_after
        local second = state.count or state.previous or state.part
        values[key] = limit.blob .. pack(limit.format, state.window or state.tick, second, state.current)
      end
      reply = pack('<BI7I7I7I7', o.verdict, o.span, o.limit, o.remaining, o.reset_after)
      at = at + 5
    end
  elseif code == DECIDE_ONE then
    if index ~= current then
      local limit = limits[index]
      current, blob, length, format = index, limit.blob, #limit.blob, limit.format
      whole = length + struct.size(format)
      unit, drain, tick_length, full = limit.unit, limit.drain, limit.tick, limit.capacity * limit.unit
      tick_now = (now - fmod(now, tick_length)) / tick_length
      -- Up to here no product exceeds MAX.
      latest = MAX / tick_length - 1
      if tick_now + full / drain > latest then
        latest = -1
      end
    end
    local key = high * 256 + low
    local value = values[key]
    local tick, part
    if not value then
      tick, part = 0, 0
    elseif sub(value, 1, length) == blob and #value >= whole then
      tick, part = read(format, value, length + 1)
      if drain == 1 then
        part = 0
      end
    end
    if tick and tick <= latest then
      local level, verdict, span, reset = 0, 0, 0, 0
      if tick >= tick_now then
        level = (tick - tick_now) * drain + part
      end
      local room = full - cost * unit
      if level <= room then
        level = level + cost * unit
        part = fmod(level, drain)
        tick = tick_now + (level - part) / drain
        reset = (part > 0 and tick + 1 or tick) * tick_length - now
        if not left[key] then
          changed[#changed + 1] = key
        end
        values[key], left[key] = blob .. pack(format, tick, part), reset
      else
        if room < 0 then
          verdict = 2
        else
          verdict = 1
          local free = tick + 1
          if room >= part then
            local excess = room - part
            free = tick - (excess - fmod(excess, drain)) / drain
          end
          span = free * tick_length - now
        end
        if level > 0 then
          reset = (part > 0 and tick + 1 or tick) * tick_length - now
        end
      end
      local rest = level < full and full - level or 0
      reply = pack('<BI7I7I7I7', verdict, span, full / unit, (rest - fmod(rest, unit)) / unit, reset)
      at = at + 5
    end
  end
  if not reply then
    if not run then
      run, write_all = general(now, min_ttl, operations, limits, values, left, algorithm_of)
    end
    reply, at = run(code, at)
  end
  count = count + 1
  replies[count] = reply
end

for _, key in ipairs(changed) do
  local value = values[key]
  if value ~= '' then
    local ttl = math.ceil(left[key] / 500000)
    redis.call('SET', KEYS[key], value, 'EX', ttl > min_ttl and ttl or ARGV[2])
  end
end
if write_all then
  write_all()
end
return table.concat(replies)
