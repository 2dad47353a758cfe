-- Adds records to streams or lists, and moves the relay's position from one place to another: all of it, or nothing if the position is elsewhere.
-- KEYS: the position's, and those of the records. ARGV: the place where the position must be; the next one; the form; the length of streams (0: any); and
-- for each record: the number of its key, and for a list the payload; for a stream the id, the number of its fields, and these.
-- Returns where the position is now.
local at = redis.call('GET', KEYS[1]) or ''
if at ~= ARGV[1] then
  return at
end
-- A script that fails in its middle is not undone. So what may fail is looked at first.
for k = 2, #KEYS do
  local is = redis.call('TYPE', KEYS[k]).ok
  if is ~= 'none' and is ~= ARGV[3] then
    return redis.error_reply('WEIRKEY ' .. k .. ' ' .. is)
  end
end
local most = tonumber(ARGV[4])
local i = 5
while i <= #ARGV do
  local key = KEYS[tonumber(ARGV[i])]
  if ARGV[3] == 'list' then
    redis.call('LPUSH', key, ARGV[i + 1])
    i = i + 2
  else
    local n = tonumber(ARGV[i + 2])
    local function add(id)
      local call = {'XADD', key}
      if most > 0 then
        call[3], call[4], call[5] = 'MAXLEN', '~', most
      end
      call[#call + 1] = id
      for k = 1, n do
        call[#call + 1] = ARGV[i + 2 + k]
      end
      return redis.pcall(unpack(call))
    end
    local done = add(ARGV[i + 1])
    -- The stream has a later id: the log was set back, and counts again what Redis has from before.
    if type(done) == 'table' and done.err and string.find(done.err, 'equal or smaller') then
      done = add('*')
    end
    if type(done) == 'table' and done.err then
      error(done.err)
    end
    i = i + 3 + n
  end
end
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]
