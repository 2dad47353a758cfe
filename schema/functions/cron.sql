-- When a schedule is due: cron expressions and intervals, in a time zone. It is computed here, in SQL, because every language's workers fire
-- schedules through the same functions, and PostgreSQL has the time zones.
--
-- An expression is parsed once, into an array of text: for each field a string with a 1 for each value that it allows, so that the next allowed
-- value is found with strpos; then 'or' or 'and' (how the two kinds of days combine), and 'real' or 'fixed'. When clocks change, a fixed expression
-- is due as often as on any other day: times that the clock skips are due right after the gap, and times that come twice are due the first time.
-- A real one, whose second, minute or hour begins with *, follows the clock: it isn't due in the gap, and again in the hour that comes again.
-- An interval is parsed into 'every', its seconds, and the Unix time of its anchor.

CREATE OR REPLACE FUNCTION weir._cron_field(field text, given text, low integer, high integer, names text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  bits   text := repeat('0', high - low + 1);
  item   text;
  part   text[];
  ends   text[];
  first  integer;
  last   integer;
  step   integer;
BEGIN
  FOREACH item IN ARRAY string_to_array(given, ',') LOOP
    part := regexp_match(item, '^([*]|[a-z]{3}|[0-9]{1,4})(?:-([a-z]{3}|[0-9]{1,4}))?(?:/([0-9]{1,6}))?$');
    IF part IS NULL OR part[1] = '*' AND part[2] IS NOT NULL THEN
      RAISE EXCEPTION 'weir: % is not a % of a schedule', quote_literal(left(item, 100)), field USING ERRCODE = '22023',
        HINT = format('Each field is *, a value, a range like %s-%s, a step like */2, or a list of these, separated by commas.', low, low + 2);
    END IF;
    step := part[3]::integer;
    IF step NOT BETWEEN 1 AND high THEN
      RAISE EXCEPTION 'weir: the step % of % is not in 1-%', step, field, high USING ERRCODE = '22023',
        HINT = 'A step counts within its field, and starts over with the next hour, day or month. For an interval of any length: every 90 minutes.';
    END IF;
    IF part[1] = '*' THEN
      first := low;
      last := high;
    ELSE
      ends := part[1:2];
      FOR i IN 1..2 LOOP
        IF ends[i] ~ '[a-z]' THEN
          IF strpos(names, ends[i]) = 0 OR strpos(names, ends[i]) % 4 <> 1 THEN
            RAISE EXCEPTION 'weir: % is not a %', ends[i], field USING ERRCODE = '22023',
              HINT = CASE WHEN names = '' THEN 'Only months and weekdays have names.' ELSE 'The names are ' || trim(names) || '.' END;
          END IF;
          ends[i] := low + strpos(names, ends[i]) / 4;
        ELSIF ends[i]::integer NOT BETWEEN low AND high THEN
          RAISE EXCEPTION 'weir: % % is not in %-%', field, ends[i], low, high USING ERRCODE = '22023';
        END IF;
      END LOOP;
      first := ends[1]::integer;
      last := coalesce(ends[2]::integer, CASE WHEN step IS NULL THEN first ELSE high END);
      IF field = 'weekday' AND last = 0 AND first > 0 THEN
        last := 7;  -- fri-sun
      ELSIF first > last THEN
        RAISE EXCEPTION 'weir: the range % of % runs backwards', item, field USING ERRCODE = '22023',
          HINT = format('Write it as two: %s-%s,%s-%s.', ends[1], high, low, ends[2]);
      END IF;
    END IF;
    FOR i IN 0..(last - first) / coalesce(step, 1) LOOP
      bits := overlay(bits PLACING '1' FROM first - low + i * coalesce(step, 1) + 1 FOR 1);
    END LOOP;
  END LOOP;
  IF field = 'weekday' THEN  -- 7 is Sunday, too
    bits := CASE WHEN substr(bits, 8, 1) = '1' THEN '1' ELSE substr(bits, 1, 1) END || substr(bits, 2, 6);
  END IF;
  RETURN bits;
END
$$;
COMMENT ON FUNCTION weir._cron_field IS 'The values that a field of a cron expression allows, as a string of 0s and 1s from low on. Errors: 22023 with the field and the value. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._parse_schedule(schedule text, time_zone text) RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
AS $$
DECLARE
  given  text := lower(btrim(regexp_replace(schedule, '[[:space:]]+', ' ', 'g')) COLLATE "C");  -- in Turkish, FRI would become something else
  fields text[];
  part   text[];
  every  interval;
  anchor timestamptz;
BEGIN
  IF given IS NULL OR given = '' OR length(given) > 1000 THEN
    RAISE EXCEPTION 'weir: a schedule must have 1 to 1000 characters, got %', coalesce(length(given)::text, 'null') USING ERRCODE = '22023', HINT = 'For example: 30 2 * * *';
  END IF;
  part := regexp_match(given, '^@?every (.+?)(?: from (.+))?$');
  IF part IS NOT NULL THEN
    -- PostgreSQL drops an offset that it finds in a timestamp, and takes words like tomorrow, which would mean another time whenever it is declared.
    IF part[2] !~ '^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([t ][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.]0+)?)?( ?(z|[+-][0-9]{1,2}(:?[0-9]{2})?))?)?$' THEN
      RAISE EXCEPTION 'weir: % is not a time from which an interval can be counted', quote_literal(left(part[2], 100)) USING ERRCODE = '22023',
        HINT = 'Write it as 2026-01-05 09:00, in the schedule''s time zone, or with an offset, as 2026-01-05 09:00+01:00.';
    END IF;
    IF part[1] ~ '^ *[+-]?[0-9.]+ *$' THEN
      RAISE EXCEPTION 'weir: the interval of a schedule needs a unit, got %', left(part[1], 100) USING ERRCODE = '22023', HINT = 'For example: every 5 minutes.';
    END IF;
    BEGIN
      every := part[1]::interval;
      anchor := CASE WHEN part[2] IS NULL THEN 'epoch'::timestamptz
                     WHEN part[2] ~ ':.*[z+-]' THEN part[2]::timestamptz
                     ELSE part[2]::timestamp AT TIME ZONE time_zone END;
    EXCEPTION WHEN data_exception THEN
      RAISE EXCEPTION 'weir: % is not an interval: %', quote_literal(schedule), SQLERRM USING ERRCODE = '22023',
        HINT = 'For example: every 90 seconds; or, counted from a time: every 2 weeks from 2026-01-05 09:00.';
    END;
    IF extract(month FROM every) <> 0 OR extract(year FROM every) <> 0 OR extract(epoch FROM every) <> floor(extract(epoch FROM every))
       OR extract(epoch FROM every) NOT BETWEEN 1 AND 366 * 86400 THEN
      RAISE EXCEPTION 'weir: the interval % of a schedule is not in 1 second to 366 days, in whole seconds and without months', every USING ERRCODE = '22023',
        HINT = 'For months use a cron expression: 0 0 1 * * is the first day of each month.';
    ELSIF anchor NOT BETWEEN '1900-01-01 00:00:00+00' AND '9999-01-01 00:00:00+00' THEN
      RAISE EXCEPTION 'weir: an interval must be counted from a time in the years 1900 to 9998, got %', part[2] USING ERRCODE = '22023';
    END IF;
    RETURN ARRAY['every', extract(epoch FROM every)::bigint::text, extract(epoch FROM anchor)::bigint::text];
  END IF;
  IF left(given, 1) = '@' THEN
    SELECT a.fields INTO given FROM (VALUES
      ('@yearly', '0 0 1 1 *'), ('@annually', '0 0 1 1 *'), ('@monthly', '0 0 1 * *'), ('@weekly', '0 0 * * 0'),
      ('@daily', '0 0 * * *'), ('@midnight', '0 0 * * *'), ('@hourly', '0 * * * *')) a(name, fields) WHERE a.name = given;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'weir: unknown schedule %', schedule USING ERRCODE = '22023',
        HINT = 'There are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly.';
    END IF;
  END IF;
  fields := string_to_array(given, ' ');
  IF cardinality(fields) = 5 THEN
    fields := array_prepend('0', fields);
  ELSIF cardinality(fields) <> 6 THEN
    RAISE EXCEPTION 'weir: the schedule % has %', quote_literal(schedule), cardinality(fields) || CASE WHEN cardinality(fields) = 1 THEN ' field' ELSE ' fields' END USING ERRCODE = '22023',
      HINT = 'There are five: minute, hour, day of the month, month, weekday; or six, with the second first. Or write an interval: every 90 seconds.';
  END IF;
  RETURN ARRAY[
    weir._cron_field('second', fields[1], 0, 59, ''), weir._cron_field('minute', fields[2], 0, 59, ''), weir._cron_field('hour', fields[3], 0, 23, ''),
    weir._cron_field('day', fields[4], 1, 31, ''), weir._cron_field('month', fields[5], 1, 12, 'jan feb mar apr may jun jul aug sep oct nov dec '),
    weir._cron_field('weekday', fields[6], 0, 7, 'sun mon tue wed thu fri sat '),
    CASE WHEN left(fields[4], 1) = '*' OR left(fields[6], 1) = '*' THEN 'and' ELSE 'or' END,
    CASE WHEN '*' IN (left(fields[1], 1), left(fields[2], 1), left(fields[3], 1)) THEN 'real' ELSE 'fixed' END];
END
$$;
COMMENT ON FUNCTION weir._parse_schedule IS
  'Parses a schedule into the form that weir._due_after takes. A time without an offset, from which an interval is counted, is in time_zone. Errors: 22023 with the field and the value. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._cron_after(fields text[], after timestamp) RETURNS timestamp
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  max_days CONSTANT integer := 366 * 60;  -- 29 February is a Sunday at least every 40 years
  start    timestamp := date_trunc('second', after) + interval '1 second';
  day      date := start::date;
  last_day date := day + max_days;
  hour     integer := extract(hour FROM start);
  minute   integer := extract(minute FROM start);
  second   integer := extract(second FROM start);
  month    integer;
  n        integer;
  is_day     boolean;
  is_weekday boolean;
  is_first   boolean := true;  -- the day on which times up to after are over
BEGIN
  WHILE day <= last_day LOOP
    month := extract(month FROM day);
    IF substr(fields[5], month, 1) = '0' THEN
      n := strpos(substr(fields[5], month + 1), '1');
      IF n = 0 THEN
        n := 12 - month + strpos(fields[5], '1');
      END IF;
      day := date_trunc('month', day::timestamp) + make_interval(months => n);
      is_first := false;
      CONTINUE;
    END IF;
    is_day := substr(fields[4], extract(day FROM day)::integer, 1) = '1';
    is_weekday := substr(fields[6], extract(dow FROM day)::integer + 1, 1) = '1';
    IF is_day AND is_weekday OR fields[7] = 'or' AND (is_day OR is_weekday) THEN
      IF NOT is_first THEN
        RETURN day + make_time(strpos(fields[3], '1') - 1, strpos(fields[2], '1') - 1, strpos(fields[1], '1') - 1);
      END IF;
      IF substr(fields[3], hour + 1, 1) = '1' THEN
        IF substr(fields[2], minute + 1, 1) = '1' THEN
          n := strpos(substr(fields[1], second + 1), '1');
          IF n > 0 THEN
            RETURN day + make_time(hour, minute, second + n - 1);
          END IF;
        END IF;
        n := strpos(substr(fields[2], minute + 2), '1');
        IF n > 0 THEN
          RETURN day + make_time(hour, minute + n, strpos(fields[1], '1') - 1);
        END IF;
      END IF;
      n := strpos(substr(fields[3], hour + 2), '1');
      IF n > 0 THEN
        RETURN day + make_time(hour + n, strpos(fields[2], '1') - 1, strpos(fields[1], '1') - 1);
      END IF;
    END IF;
    day := day + 1;
    is_first := false;
  END LOOP;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION weir._cron_after IS 'The first time on the wall clock after another one that a parsed cron expression allows, or NULL if there is none within 60 years. Errors: none. Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._offset_at(at timestamptz, time_zone text) RETURNS interval
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  RETURN (at AT TIME ZONE time_zone) - (at AT TIME ZONE 'UTC');
END
$$;
COMMENT ON FUNCTION weir._offset_at IS 'How far the clocks of a time zone are ahead of UTC at an instant. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._clock_change(low timestamptz, high timestamptz, time_zone text) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  new_offset CONSTANT interval := weir._offset_at(high, time_zone);
  before  timestamptz := date_trunc('second', low);
  changed timestamptz := high;
  middle  timestamptz;
BEGIN
  WHILE changed - before > interval '1 second' LOOP
    middle := date_trunc('second', before + (changed - before) / 2);
    IF weir._offset_at(middle, time_zone) = new_offset THEN
      changed := middle;
    ELSE
      before := middle;
    END IF;
  END LOOP;
  RETURN changed;
END
$$;
COMMENT ON FUNCTION weir._clock_change IS 'The instant at which the clocks of a time zone change, between two instants with different offsets. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._first_instant(wall timestamp, time_zone text, OUT instant timestamptz, OUT is_skipped boolean)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  reach  CONSTANT interval := '30 hours';  -- clocks have changed by up to a day
  before timestamptz;  -- by the offset before a change nearby
  after  timestamptz;
BEGIN
  instant := wall AT TIME ZONE time_zone;
  before := (wall - weir._offset_at(instant - reach, time_zone)) AT TIME ZONE 'UTC';
  after := (wall - weir._offset_at(instant + reach, time_zone)) AT TIME ZONE 'UTC';
  is_skipped := false;
  IF before = after THEN
    RETURN;
  END IF;
  SELECT min(c) INTO instant FROM (VALUES (before), (after)) v(c) WHERE c AT TIME ZONE time_zone = wall;
  IF instant IS NULL THEN
    is_skipped := true;
    instant := weir._clock_change(least(before, after), greatest(before, after), time_zone);
  END IF;
END
$$;
COMMENT ON FUNCTION weir._first_instant IS
  'The first instant at which the clocks of a time zone show a time; if they skip it, the instant of the change. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._due_after(fields text[], time_zone text, after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  reach  CONSTANT interval := '26 hours';  -- clocks have changed by up to a day
  ahead  interval;
  then_  interval;
  wall   timestamp;
  due    timestamptz;
  near   timestamptz;
  is_skipped boolean;
BEGIN
  IF after NOT BETWEEN '0001-01-01 00:00:00+00' AND '9900-01-01 00:00:00+00' THEN
    RETURN NULL;
  ELSIF fields[1] = 'every' THEN
    RETURN to_timestamp((fields[3]::bigint + (floor((extract(epoch FROM after) - fields[3]::bigint) / fields[2]::bigint) + 1) * fields[2]::bigint)::double precision);
  ELSIF time_zone = 'UTC' THEN
    RETURN weir._cron_after(fields, after AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
  END IF;
  wall := after AT TIME ZONE time_zone;
  IF fields[8] = 'fixed' THEN
    LOOP
      wall := weir._cron_after(fields, wall);
      due := (weir._first_instant(wall, time_zone)).instant;
      IF due > after OR due IS NULL THEN
        RETURN due;
      END IF;
    END LOOP;
  END IF;
  ahead := wall - (after AT TIME ZONE 'UTC');
  wall := weir._cron_after(fields, wall);
  due := (wall - ahead) AT TIME ZONE 'UTC';
  near := least(due, after + reach);
  then_ := weir._offset_at(near, time_zone);
  IF then_ = ahead AND near = due THEN
    RETURN due;
  ELSIF then_ < ahead THEN  -- clocks go back in between, and show some times again
    due := weir._clock_change(after, near, time_zone);
    wall := weir._cron_after(fields, (due AT TIME ZONE time_zone) - interval '1 microsecond');
    due := (wall - then_) AT TIME ZONE 'UTC';
    IF weir._offset_at(due, time_zone) = then_ THEN
      RETURN due;
    END IF;
  END IF;
  LOOP
    SELECT f.* INTO due, is_skipped FROM weir._first_instant(wall, time_zone) f;
    IF due IS NULL OR NOT is_skipped THEN
      RETURN due;
    END IF;
    wall := weir._cron_after(fields, (due AT TIME ZONE time_zone) - interval '1 microsecond');
  END LOOP;
END
$$;
COMMENT ON FUNCTION weir._due_after IS
  'The first due time of a parsed schedule after an instant, always a whole second; NULL: none. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';

CREATE OR REPLACE FUNCTION weir._due_upto(fields text[], time_zone text, due timestamptz, upto timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
  newest timestamptz := due;
  none   timestamptz := upto;  -- nothing is due after it, up to upto
  middle timestamptz;
  found  timestamptz := weir._due_after(fields, time_zone, newest);
BEGIN
  WHILE found <= upto LOOP
    newest := found;
    -- Halve what is left.
    WHILE none - newest > interval '1 second' LOOP
      middle := newest + (none - newest) / 2;
      found := weir._due_after(fields, time_zone, middle);
      IF found <= upto THEN
        newest := found;
      ELSE
        none := middle;
      END IF;
    END LOOP;
    found := weir._due_after(fields, time_zone, newest);
  END LOOP;
  RETURN newest;
END
$$;
COMMENT ON FUNCTION weir._due_upto IS
  'The last due time of a parsed schedule up to an instant, from one due time on, however many are in between. Errors: 22023 (unknown time zone). Locks: none. Isolation: any.';
