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

-- a * b / c, rounded up, at most MAX. The product may take 106 bits, so it is formed bit by bit, modulo c.
local function mul_div_ceil(a, b, c)
  local whole, step = floor_div(a, c) * b, math.fmod(a, c)
  local quotient, rest = 0, 0
  for bit = 52, 0, -1 do
    local weight = 2 ^ bit
    quotient = quotient * 2
    if rest >= c - rest then
      quotient, rest = quotient + 1, rest - (c - rest)
    else
      rest = rest + rest
    end
    if b >= weight then
      b = b - weight
      if rest >= c - step then
        quotient, rest = quotient + 1, rest - (c - step)
      else
        rest = rest + step
      end
    end
  end
  if rest > 0 then
    quotient = quotient + 1
  end
  return math.min(whole + quotient, MAX)
end

-- The time from `earlier` to `later` in microseconds, at least 0.
local function since(later, earlier)
  return math.max(later - earlier, 0)
end
