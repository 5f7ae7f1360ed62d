-- What wrk sends: a thousand customers in turn, each request written once and kept.
--
-- Arguments: the path; then `close`, for a connection each, and `count`, to count answers by status and size.

local requests, last = {}, 0
local threads = {}
seen = {}

local function count(status, _, body)
  local kind = status .. " " .. #body
  seen[kind] = (seen[kind] or 0) + 1
end

function setup(thread)
  threads[#threads + 1] = thread
end

function init(args)
  local headers = { Host = "api.example" }
  for n = 2, #args do
    if args[n] == "close" then headers["Connection"] = "close" end
    -- Without a `response`, wrk does not hand answers over at all.
    if args[n] == "count" then response = count end
  end
  for n = 1, 1000 do
    headers["X-API-Key"] = string.format("customer:%012d", n)
    requests[n] = wrk.format("GET", args[1], headers)
  end
end

function request()
  last = last % 1000 + 1
  return requests[last]
end

function done()
  for _, thread in ipairs(threads) do
    for kind, number in pairs(thread:get("seen")) do print("answers " .. kind .. " " .. number) end
  end
end
