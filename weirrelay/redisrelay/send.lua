-- Adds records, in one of the forms of form.go, and moves the relay's position from one place to another: all of it, or nothing if the position is elsewhere. If Redis does not take a
-- record, because of its ACL, say, those before it are added, and the position is behind them: a script that fails in its middle is not undone.
-- KEYS: the position's; and those that records name by their numbers. ARGV: the place where the position must be; the next one, the same for jobs; the form; the
-- length of streams (0: any); what each key must be, a letter each; the time in milliseconds; and for each record: the number of its key, that of its mark (0: none),
-- its position, how many values follow, and these.
-- Returns where the position is now.
local at = redis.call('GET', KEYS[1]) or ''
if at ~= ARGV[1] then
  return at
end
local form, most, now = ARGV[3], tonumber(ARGV[4]), ARGV[6]
local first = 7

-- What refuses a record for good is looked at first.
local types = {l = 'list', s = 'stream', e = 'set', h = 'hash', z = 'zset'}
for k = 1, #KEYS do
  local must = types[string.sub(ARGV[5], k, k)]
  if must then
    local is = redis.call('TYPE', KEYS[k]).ok
    if is ~= 'none' and is ~= must then
      return redis.error_reply('WEIRKEY ' .. k .. ' ' .. is .. ' ' .. must)
    end
  end
end

-- queues has what is to be known of each queue of BullMQ, by the number of the first of its keys: wait, paused, meta, active, events, marker.
local queues = {}
if form == 'bullmq' then
  local i = first
  while i <= #ARGV do
    local k = tonumber(ARGV[i])
    if not queues[k] then
      local meta = redis.call('HMGET', KEYS[k + 2], 'version', 'paused', 'concurrency', 'opts.maxLenEvents')
      local version, paused, limit, events = meta[1], meta[2], tonumber(meta[3] or ''), tonumber(meta[4] or '')
      local major = version and string.match(version, '^bullmq:(%d+)%.')
      -- Version 5 keeps what a paused queue gets in a list of its own; version 6 does not.
      if version and major ~= '5' and major ~= '6' or paused and not version then
        return redis.error_reply('WEIRQUEUE ' .. k .. ' ' .. (version or 'unknown'))
      end
      queues[k] = {
        list = paused and major == '5' and KEYS[k + 1] or KEYS[k],
        wakes = not paused and (not limit or redis.call('LLEN', KEYS[k + 3]) < limit),
        events = string.format('%d', events and events >= 0 and events < 1e15 and events or 10000),
      }
    end
    i = i + 4 + tonumber(ARGV[i + 3])
  end
end

local function xadd(key, id, from, n)
  local call = {'XADD', key}
  if most > 0 then
    call[3], call[4], call[5] = 'MAXLEN', '~', most
  end
  call[#call + 1] = id
  for i = from, from + n - 1 do
    call[#call + 1] = ARGV[i]
  end
  return redis.pcall(unpack(call))
end

-- Each adds a record to the key with the number k: its n values begin at i. It returns an error, raises one, or returns nil. Once the record is where somebody takes it, nothing can fail
-- any more; and what was done before may be done again.
local add = {}

function add.list(k, i)
  redis.call('LPUSH', KEYS[k], ARGV[i])
end

-- Values: the payload; the queue's name; the number of the key of the set of queues.
function add.sidekiq(k, i)
  redis.call('SADD', KEYS[tonumber(ARGV[i + 2])], ARGV[i + 1])
  redis.call('LPUSH', KEYS[k], ARGV[i])
end

-- Values: the number of the job's key; its id; its name; data; options.
function add.bullmq(k, i)
  local job, id, name, queue = KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2], queues[k]
  if redis.call('HMGET', job, 'timestamp')[1] then
    return -- BullMQ does nothing either if it has the id
  end
  redis.call('HSET', job, 'name', name, 'data', ARGV[i + 3], 'opts', ARGV[i + 4], 'delay', 0, 'priority', 0)
  redis.call('XADD', KEYS[k + 4], '*', 'event', 'added', 'jobId', id, 'name', name)
  if queue.wakes then
    redis.call('ZADD', KEYS[k + 5], 0, '0')
  end
  redis.call('LPUSH', queue.list, id)
  redis.call('HSET', job, 'timestamp', now)
  redis.call('XADD', KEYS[k + 4], 'MAXLEN', '~', queue.events, '*', 'event', 'waiting', 'jobId', id)
end

-- Values: the id; and the fields, of messages beginning with channel and position.
function add.stream(k, i, n)
  local done = xadd(KEYS[k], ARGV[i], i + 1, n - 1)
  if type(done) == 'table' and done.err and string.find(done.err, 'equal or smaller') then
    local there = redis.call('XRANGE', KEYS[k], ARGV[i], ARGV[i])[1]
    if there and there[2][3] == 'position' and there[2][4] == ARGV[i + 4] then
      return -- it is this message: the key of the position was lost
    end
    -- The stream has a later id: the log was set back, and counts again what Redis has from before; or others add to the stream.
    done = xadd(KEYS[k], '*', i + 1, n - 1)
  end
  return type(done) == 'table' and done.err or nil
end

-- The position is written first: then it is known that it may be.
local moves = ARGV[2] ~= at
if moves then
  redis.call('SET', KEYS[1], ARGV[2])
end
local i, before = first, at
while i <= #ARGV do
  local k, mark, position, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 3])
  local marked = false
  local ok, failed = pcall(function()
    if mark == 0 or redis.call('SET', KEYS[mark], 1, 'NX', 'EX', 86400) then
      marked = mark ~= 0
      return add[form](k, i + 4, n)
    end
  end)
  if failed then
    if marked then
      redis.call('SET', KEYS[mark], 1, 'PX', 1) -- which is allowed, as DEL may not be
    end
    if moves then
      redis.call('SET', KEYS[1], before)
    end
    return redis.error_reply(type(failed) == 'table' and failed.err or failed)
  end
  i, before = i + 4 + n, position
end
return ARGV[2]
