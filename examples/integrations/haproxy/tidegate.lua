-- Asks Tidegate about each request: `http-request lua.tidegate`. Needs HAProxy 2.5 or later, and no other library.

local tidegate = "http://127.0.0.1:8082"
-- Whether requests pass while Tidegate does not answer. If not, they get 503.
local fail_open = false
-- HAProxy tries for a few seconds to get an answer. After it had none, requests pass at once for this many seconds.
local pause = 5
local paused_until = 0
-- The token of the listener, if it has one.
local token = nil
-- How long to wait for an answer, in milliseconds. A `leaky_bucket` delays it by up to its `max_wait`, 30 s by default, so this must
-- be longer: HAProxy asks again after a timeout, up to three times, and each question is charged. 2000 is enough without such a rule.
local timeout = 32000

-- Headers that describe the request to Tidegate, or the connection. A client must not send them.
local removed = {
    ["host"] = true,
    ["connection"] = true,
    ["content-length"] = true,
    ["transfer-encoding"] = true,
    ["upgrade"] = true,
    ["expect"] = true,
    ["x-original-method"] = true,
    ["x-original-uri"] = true,
    ["x-original-host"] = true,
    ["x-real-ip"] = true,
    ["x-forwarded-method"] = true,
    ["x-forwarded-uri"] = true,
    ["x-forwarded-host"] = true,
    ["x-tidegate-token"] = true,
    -- The headers of `clients.user` and `clients.tenant` in the policy. To send them, set them below to what HAProxy itself
    -- has verified.
    ["x-user-id"] = true,
    ["x-tenant"] = true,
}

-- The values of a header as a list that begins at 1.
local function list(values)
    local all = {}
    for index = 0, #values do
        if values[index] then
            table.insert(all, values[index])
        end
    end
    return all
end

local function first(headers, name)
    local values = headers and headers[name]
    return values and (values[0] or values[1])
end

-- Whether Tidegate is there. A client must not be able to choose a request that has no answer, and so to pass: this question has
-- nothing of the client.
local function is_alive()
    local response = core.httpclient():get({ url = tidegate .. "/healthz", timeout = 1000 })
    return response ~= nil and response.status == 200
end

core.register_action("tidegate", { "http-req" }, function(txn)
    if core.now().sec < paused_until then
        return
    end
    local received = txn.http:req_get_headers()
    local headers = {}
    for name, values in pairs(received) do
        if not removed[name] then
            headers[name] = list(values)
        end
    end
    local address = txn.f:src()
    headers["x-original-method"] = { txn.f:method() }
    headers["x-original-uri"] = { txn.f:pathq() }
    headers["x-original-host"] = { first(received, "host") }
    headers["x-real-ip"] = { address }
    -- The address goes to the end of the list that a client may have sent.
    local forwarded = headers["x-forwarded-for"] or {}
    table.insert(forwarded, address)
    headers["x-forwarded-for"] = { table.concat(forwarded, ", ") }
    if token then
        headers["x-tidegate-token"] = { token }
    end
    local response = core.httpclient():get({ url = tidegate .. "/v1/authorize", headers = headers, timeout = timeout })
    local status = response and response.status or 0
    if status == 200 then
        txn:set_var("txn.tidegate_limit", first(response.headers, "x-ratelimit-limit"))
        txn:set_var("txn.tidegate_remaining", first(response.headers, "x-ratelimit-remaining"))
        txn:set_var("txn.tidegate_reset", first(response.headers, "x-ratelimit-reset"))
        return
    end
    -- Where there is no answer, the status is 0, or the response is HAProxy's own, which is a web page.
    local is_answer = (status == 400 or status == 403 or status == 429 or status == 503)
        and first(response.headers, "content-type") ~= "text/html"
    if fail_open and not is_answer and not is_alive() then
        paused_until = core.now().sec + pause
        return
    end
    local reply = txn:reply({ status = is_answer and status or 503 })
    for _, name in ipairs({ "content-type", "retry-after", "x-ratelimit-limit", "x-ratelimit-remaining",
        "x-ratelimit-reset", "ratelimit-policy", "ratelimit" }) do
        local value = is_answer and first(response.headers, name)
        if value then
            reply:add_header(name, value)
        end
    end
    reply:set_body(is_answer and response.body or "")
    txn:done(reply)
end)
