-- Users of hubs: they are disconnected, and their tokens are revoked. Each call inserts a row, and rings at the hubs through the log of messages.

CREATE OR REPLACE FUNCTION weir._revoke(user_name text, lasts interval) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
  most CONSTANT integer := 100000;
  done_at timestamptz := clock_timestamp();
BEGIN
  IF user_name IS NULL OR octet_length(user_name) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'weir: a user''s name has 1 to 255 bytes, got %', coalesce(quote_literal(left(user_name, 80)), 'null') USING ERRCODE = '22023';
  ELSIF lasts <= interval '0' OR lasts > interval '400 days' THEN
    RAISE EXCEPTION 'weir: tokens are revoked for up to 400 days, got %', lasts
      USING ERRCODE = '22023', HINT = 'Name a time after which every token that has been issued until now has expired.';
  END IF;
  -- What is over goes here: the table is small, and only this function and hubs that were rung at read it.
  DELETE FROM weir.revocation r WHERE r.ctid = ANY (ARRAY(
    SELECT o.ctid FROM weir.revocation o WHERE coalesce(o.until, o.at) < done_at - interval '10 minutes' LIMIT 1000 FOR UPDATE SKIP LOCKED));
  IF (SELECT count(*) FROM (SELECT FROM weir.revocation LIMIT most) r) >= most THEN
    RAISE EXCEPTION 'weir: the tokens of % users are revoked, which is the limit', most
      USING ERRCODE = '54000', HINT = 'Remove the key that the tokens are signed with, which revokes all of them.';
  END IF;
  INSERT INTO weir.revocation (id, at, until, user_name) VALUES (nextval('weir.revocation_id'), done_at, done_at + lasts, user_name);
  PERFORM weir.publish('$weir.users');
  RETURN done_at;
END
$$;
COMMENT ON FUNCTION weir._revoke IS
  'Logs that a user is disconnected and, unless lasts is NULL, that the tokens issued to the user until now are refused. Errors: 22023; 54000 (100000 users); WR004. Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.disconnect(user_name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  PERFORM weir._revoke(disconnect.user_name, NULL);
END
$$;
COMMENT ON FUNCTION weir.disconnect IS
  'After the commit, ends all connections of a user at all hubs, whatever the protocol: the user of a token or a callback, or a role. The user may connect again, if allowed. Errors: 22023; 54000 (100000 users); WR004 (as weir.publish). Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.revoke(user_name text, lasts interval DEFAULT '30 days') RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
  IF revoke.lasts IS NULL THEN
    RAISE EXCEPTION 'weir: revoke needs the time after which the tokens have expired, got null' USING ERRCODE = '22023';
  END IF;
  RETURN weir._revoke(revoke.user_name, revoke.lasts);
END
$$;
COMMENT ON FUNCTION weir.revoke IS
  'After the commit, all hubs refuse the tokens that were issued to a user (sub) before the time that it returns (iat), and those without iat, and end the user''s connections. The hubs forget it after lasts, up to 400 days: by then these tokens must have expired. Errors: 22023; 54000 (100000 users); WR004 (as weir.publish). Locks: none that others wait for. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.revocations() RETURNS TABLE (id bigint, user_name text, at timestamptz, until timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT r.id, r.user_name, r.at, r.until FROM weir.revocation r WHERE coalesce(r.until, r.at + interval '10 minutes') > clock_timestamp() ORDER BY r.id
$$;
COMMENT ON FUNCTION weir.revocations IS
  'The users whose tokens from before at are refused until the time until, and, without until, those that were disconnected in the last ten minutes. Errors: none. Locks: none that others wait for. Isolation: any.';
