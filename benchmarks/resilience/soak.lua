-- wrk sends the pictures whose files its arguments name, in turn, and counts the statuses that come.

local requests = {}
local sent = 0
local threads = {}
statuses = {} -- global: the main thread asks each thread for it

function setup(thread)
    table.insert(threads, thread)
end

function init(arguments)
    for _, path in ipairs(arguments) do
        local file = assert(io.open(path, "rb"))
        table.insert(requests, wrk.format("POST", nil, { ["Content-Type"] = "image/png" }, file:read("*a")))
        file:close()
    end
end

function request()
    sent = sent + 1
    return requests[sent % #requests + 1]
end

function response(status)
    statuses[status] = (statuses[status] or 0) + 1
end

function done(summary)
    for _, thread in ipairs(threads) do
        for status, responses in pairs(thread:get("statuses")) do
            print(string.format("  [%d] %d responses", status, responses))
        end
    end
    for kind, errors in pairs(summary.errors) do
        if kind ~= "status" and errors > 0 then
            print(string.format("  [%d] wrk's %s errors", errors, kind))
        end
    end
end
