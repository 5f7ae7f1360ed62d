-- The entry of a key: its counters and its override.
--
-- An entry has a counter for each of the last two limits of its rule, the one used last first. While nodes with the old
-- and nodes with the new limit of a rule alternate, each admission is charged to both, so neither counter starts again.
-- A counter is { rule, limit, state, used }: the rule's limit that selects it, the limit it counts under (the override's
-- while there is one), its state, and when it last decided.
--
-- Format: the first byte is 16 * version + shape.
--   shape 1 to 15   one counter, no override: the limit (see format.lua), then the state; with the version LENDING 1 to 3
--   shape 0         everything else: cmsgpack of { till, override, undo, attempt, if there is an override when it began, then
--                   for each counter: rule, limit, used, and its state }; `undo` is the entry before the charge of that attempt
-- The cells of a sliding log are in a string beside the entry, 14 bytes each, named like the entry with '1' or '2' added:
-- a log of 10,000 admissions must not be rewritten by each decision. They are read and written one by one. Both names are in
-- KEYS, so that a cluster that moves the slot rejects the call if it lacks one of them; only an operation of another algorithm
-- that meets a log, after the algorithm of a rule was changed, uses names that are not.

local FIELDS = {
  { 'tick', 'part' },
  { 'tick', 'part' },
  { 'window', 'count' },
  { 'newest', 'total', 'count', 'first', 'last', 'place' },
  { 'window', 'previous', 'current' },
}

local COUNTERS = 2
-- A limit that has decided nothing for this long is no longer in use on any node.
local UNUSED = 600000000
-- An override may affect refunds for this long after its end; it is kept twice as long, in case time goes back.
local REFUNDS_END = 60000000
local CELL = 14
local CELLS_PER_READ = 32

local entries = {}
local known = {}

local function limit_of(blob)
  local limit = known[blob]
  if not limit then
    limit = read_limit(blob, 1)
    known[blob] = limit
  end
  return limit
end

local function cells_name(entry, place)
  return entry.name .. string.format('%d', place)
end

local function same(a, b)
  return a.blob == b.blob
end

-- The cells of a log, read when they are needed.
local function open_cells(log, name)
  local at, units, changed = {}, {}, {}
  local function read(i)
    local from = math.max(i - 1, 0)
    local text = redis.call('GETRANGE', name, from * CELL, (from + CELLS_PER_READ) * CELL - 1)
    for k = 0, CELLS_PER_READ - 1 do
      local cell = from + k + 1
      if not at[cell] then
        -- Cells that are missing have no units.
        local time, count = 0, 0
        if #text >= (k + 1) * CELL then
          time, count = struct.unpack('<I7I7', text, k * CELL + 1)
        end
        at[cell], units[cell] = time, count
      end
    end
  end
  local function view(column)
    return setmetatable({}, {
      __index = function(_, i)
        if not column[i] then
          read(i)
        end
        return column[i]
      end,
      __newindex = function(_, i, value)
        column[i], changed[i] = value, true
      end,
    })
  end
  log.at, log.units = view(at), view(units)
  log.changed = changed
  return log
end

local function read_state(algorithm, fields, from, entry)
  local state = {}
  for i, field in ipairs(FIELDS[algorithm]) do
    state[field] = fields[from + i - 1]
  end
  if algorithm == SLIDING_LOG then
    open_cells(state, cells_name(entry, state.place))
  end
  return state
end

-- Reads a packed entry.
local function unpack_entry(packed, name)
  local entry = { counters = {}, name = name }
  if not packed or packed == '' then
    return entry
  end
  local head = string.byte(packed)
  local version = math.floor(head / 16)
  if version ~= VERSION and not (version == LENDING and head % 16 >= 1 and head % 16 <= 3) then
    entry.foreign = true
  elseif head % 16 > 0 then
    local limit, at = read_limit(packed, 1)
    local fields = { struct.unpack(limit.format, packed, at) }
    if limit.drain == 1 then
      fields[2] = 0
    end
    known[limit.blob] = known[limit.blob] or limit
    local state = read_state(limit.algorithm, fields, 1, entry)
    entry.counters[1] = { rule = limit, limit = limit, state = state, used = now }
  else
    local f = cmsgpack.unpack(string.sub(packed, 2))
    if f[2] ~= '' then
      entry.override = { till = f[1], limit = limit_of(f[2]) }
    end
    local at = 5
    if type(f[at]) == 'number' then
      entry.override.since, at = f[at], at + 1
    end
    if f[3] ~= '' then
      entry.undo, entry.attempt = f[3], f[4]
    end
    while f[at] do
      local rule, limit = limit_of(f[at]), limit_of(f[at + 1])
      local state = read_state(limit.algorithm, f, at + 3, entry)
      entry.counters[#entry.counters + 1] = { rule = rule, limit = limit, used = f[at + 2], state = state }
      at = at + 3 + #FIELDS[limit.algorithm]
    end
  end
  return entry
end

local function entry_of(key)
  local entry = entries[key]
  if not entry then
    local is_read
    is_read, entry = pcall(unpack_entry, values[key], KEYS[key])
    if not is_read then
      -- An entry that the script did not write is an error of its own operations only.
      entry = { counters = {}, name = KEYS[key], foreign = true, malformed = true }
    end
    entries[key] = entry
    -- From now on the fast path leaves this key to the entry.
    values[key] = ''
    entry.dirty = left[key] ~= nil
  end
  return entry
end

local function pack_entry(entry)
  local first, second = entry.counters[1], entry.counters[2]
  if first and not second and not entry.override and not entry.undo and same(first.rule, first.limit) then
    local algorithm, state = first.limit.algorithm, first.state
    local fields = {}
    for i, field in ipairs(FIELDS[algorithm]) do
      fields[i] = state[field]
    end
    return first.limit.blob .. struct.pack(first.limit.format, unpack(fields))
  end
  local override = entry.override
  local f = {
    override and override.till or 0,
    override and override.limit.blob or '',
    entry.undo or '',
    entry.attempt or 0,
    override and override.since or nil,
  }
  for _, counter in ipairs(entry.counters) do
    f[#f + 1], f[#f + 2], f[#f + 3] = counter.rule.blob, counter.limit.blob, counter.used
    for _, field in ipairs(FIELDS[counter.limit.algorithm]) do
      f[#f + 1] = counter.state[field]
    end
  end
  return string.char(16 * VERSION) .. cmsgpack.pack(f)
end

-- Another number for the cells of a new log than for those of the other counter.
local function free_place(entry)
  for _, counter in ipairs(entry.counters) do
    if counter.state.place == 1 then
      return 2
    end
  end
  return 1
end

-- The cells of a log that is no longer counted are removed when the entry is written.
local function drop_cells(entry, state)
  if state.place then
    entry.dropped = entry.dropped or {}
    entry.dropped[state.place] = true
  end
end

-- A log for a new counter: its cells are copied.
local function copy_of(entry, log)
  local place = free_place(entry)
  local copy = open_cells({
    newest = log.newest,
    total = log.total,
    count = log.count,
    first = 1,
    last = log.last - log.first + 1,
    place = place,
  }, cells_name(entry, place))
  for i = 1, copy.last do
    copy.at[i], copy.units[i] = log.at[log.first + i - 1], log.units[log.first + i - 1]
  end
  return copy
end

-- Writes the changed cells of a log, those in a row together. A cancellation may need cells before the first.
local function write_changed(name, log, first)
  local places = {}
  for i in pairs(log.changed) do
    if i >= first and i <= log.last then
      places[#places + 1] = i
    end
  end
  table.sort(places)
  local row, from = {}, 0
  for k, i in ipairs(places) do
    if #row == 0 then
      from = i
    end
    row[#row + 1] = struct.pack('<I7I7', log.at[i], log.units[i])
    if places[k + 1] ~= i + 1 then
      redis.call('SETRANGE', name, (from - 1) * CELL, table.concat(row))
      row = {}
    end
  end
end

-- Writes a log's cells. Removes those before the first if they are most of the string.
local function write_cells(entry, log, ttl)
  local name = cells_name(entry, log.place)
  if log.last < log.first then
    redis.call('DEL', name)
    log.first, log.last = 1, 0
    return
  end
  write_changed(name, log, entry.undo and 1 or log.first)
  local unused = log.first - 1
  if unused > CELLS_PER_READ and unused > log.last - unused and not entry.undo then
    local cells = redis.call('GETRANGE', name, unused * CELL, log.last * CELL - 1)
    redis.call('SET', name, cells)
    log.first, log.last = 1, log.last - unused
  end
  -- Longer than the entry that refers to it.
  redis.call('EXPIRE', name, string.format('%.0f', ttl + 1))
end

local function write_entry(entry)
  local override = entry.override
  if override and override.till + 2 * REFUNDS_END <= now then
    entry.override, override = nil, nil
  end
  for _, counter in ipairs(entry.counters) do
    if counter.state.place and entry.dropped then
      entry.dropped[counter.state.place] = nil
    end
  end
  for place in pairs(entry.dropped or {}) do
    redis.call('DEL', cells_name(entry, place))
  end
  if #entry.counters == 0 and not override then
    redis.call('DEL', entry.name)
    return
  end
  local ttl = min_ttl
  for _, counter in ipairs(entry.counters) do
    local fresh = algorithm_of(counter.limit.algorithm).until_fresh(counter.limit, counter.state, now)
    ttl = math.max(ttl, ceil_div(2 * fresh, 1000000))
  end
  if override then
    ttl = math.max(ttl, ceil_div(since(override.till + 2 * REFUNDS_END, now), 1000000))
  end
  for _, counter in ipairs(entry.counters) do
    if counter.state.place then
      write_cells(entry, counter.state, ttl)
    end
  end
  redis.call('SET', entry.name, pack_entry(entry), 'EX', string.format('%.0f', ttl))
end
