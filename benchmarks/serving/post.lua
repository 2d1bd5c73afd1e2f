-- wrk: POST the files of a list in turn, end with one line of JSON. `requests` counts all answers, `refused` those that
-- are not 200, `statuses` those of each status, `errors` requests without an answer.
-- Arguments after `--`: the content type, then the files. HEADER_<name>=<value> arguments add headers.

local requests, threads = {}, {}

function setup(thread) table.insert(threads, thread) end

function init(args)
  local headers, files = {}, {}
  headers["Content-Type"] = args[1]
  for i = 2, #args do
    local name, value = args[i]:match("^HEADER_([^=]+)=(.*)$")
    if name then headers[name] = value else table.insert(files, args[i]) end
  end
  for _, path in ipairs(files) do
    local file = assert(io.open(path, "rb"))
    table.insert(requests, wrk.format("POST", nil, headers, file:read("*a")))
    file:close()
  end
  sent, statuses = 0, {}
end

function request()
  sent = sent + 1
  return requests[sent % #requests + 1]
end

function response(status) statuses[status] = (statuses[status] or 0) + 1 end

function done(summary, latency)
  local all, refused, shown, errors = {}, 0, {}, summary.errors
  for _, thread in ipairs(threads) do
    for status, count in pairs(thread:get("statuses")) do all[status] = (all[status] or 0) + count end
  end
  for status, count in pairs(all) do
    if status ~= 200 then refused = refused + count end
    table.insert(shown, string.format('"%d": %d', status, count))
  end
  errors = errors.connect + errors.read + errors.write + errors.timeout
  print(string.format('{"requests": %d, "refused": %d, "statuses": {%s}, "errors": %d, "seconds": %f, "p50_ms": %f, '
    .. '"p99_ms": %f}', summary.requests, refused, table.concat(shown, ", "), errors, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
