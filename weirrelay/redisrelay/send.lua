-- Adds records to streams or lists, and moves the relay's position from one place to another: all of it, or nothing if the position is elsewhere.
-- KEYS: the position's; those of the records, and of the marks of jobs. ARGV: the place where the position must be; the next one, the same for jobs; the form; the
-- length of streams (0: any); and for each record: the number of its key, that of its mark (0: none), and for a list the payload; for a stream the id, the number
-- of its fields, and these.
-- Returns where the position is now.
local at = redis.call('GET', KEYS[1]) or ''
if at ~= ARGV[1] then
  return at
end
local form, most = ARGV[3], tonumber(ARGV[4])

-- next returns the number after the arguments of the record that begins at i.
local function next(i)
  if form == 'list' then
    return i + 3
  end
  return i + 4 + tonumber(ARGV[i + 3])
end

-- A script that fails in its middle is not undone. So what may fail is looked at first.
local looked = {}
local i = 5
while i <= #ARGV do
  local k = tonumber(ARGV[i])
  if not looked[k] then
    looked[k] = true
    local is = redis.call('TYPE', KEYS[k]).ok
    if is ~= 'none' and is ~= form then
      return redis.error_reply('WEIRKEY ' .. k .. ' ' .. is)
    end
  end
  i = next(i)
end

local function add(key, id, from, n)
  local call = {'XADD', key}
  if most > 0 then
    call[3], call[4], call[5] = 'MAXLEN', '~', most
  end
  call[#call + 1] = id
  for k = from, from + n - 1 do
    call[#call + 1] = ARGV[k]
  end
  return redis.pcall(unpack(call))
end

i = 5
while i <= #ARGV do
  local key, mark = KEYS[tonumber(ARGV[i])], tonumber(ARGV[i + 1])
  if mark == 0 or redis.call('SET', KEYS[mark], 1, 'NX', 'EX', 86400) then
    if form == 'list' then
      redis.call('LPUSH', key, ARGV[i + 2])
    else
      local n = tonumber(ARGV[i + 3])
      local done = add(key, ARGV[i + 2], i + 4, n)
      -- The stream has a later id: the log was set back, and counts again what Redis has from before.
      if type(done) == 'table' and done.err and string.find(done.err, 'equal or smaller') then
        done = add(key, '*', i + 4, n)
      end
      if type(done) == 'table' and done.err then
        if mark ~= 0 then
          redis.call('DEL', KEYS[mark])
        end
        error(done.err)
      end
    end
  end
  i = next(i)
end
if ARGV[2] ~= at then
  redis.call('SET', KEYS[1], ARGV[2])
end
return ARGV[2]
