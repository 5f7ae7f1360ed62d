-- Exact integers in doubles: every value is at most 2^53 - 1, up to which a double represents every integer.

local MAX = 9007199254740991
local PASS, NOT_UNTIL, NEVER = 0, 1, 2

-- `a % b` and `a / b` round for large numbers in Lua 5.1; fmod does not.
local function floor_div(a, b)
  return (a - math.fmod(a, b)) / b
end

local function ceil_div(a, b)
  local rest = math.fmod(a, b)
  if rest == 0 then
    return a / b
  end
  return (a - rest) / b + 1
end

-- The time from `earlier` to `later` in microseconds, at least 0.
local function since(later, earlier)
  return math.max(later - earlier, 0)
end
