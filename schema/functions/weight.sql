-- Weights of keys: how many jobs a key may start in relation to the other keys of its queue. Claims read them when they give turns.

CREATE OR REPLACE FUNCTION weir.set_weight(queue text, key text, weight double precision) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  IF coalesce(set_weight.queue, '') = '' OR length(set_weight.queue) > 128 THEN
    RAISE EXCEPTION 'weir: set_weight needs the name of a queue, of at most 128 characters, got %', coalesce(quote_literal(left(set_weight.queue, 200)), 'null') USING ERRCODE = '22023';
  ELSIF coalesce(set_weight.key, '') = '' THEN
    RAISE EXCEPTION 'weir: set_weight needs a key, got %', coalesce(quote_literal(set_weight.key), 'null') USING ERRCODE = '22023';
  ELSIF NOT (set_weight.weight BETWEEN 0.01 AND 1000) THEN
    RAISE EXCEPTION 'weir: a weight must be 0.01 to 1000, got %', set_weight.weight USING ERRCODE = '22023', HINT = '1 is the weight of keys for which none was set.';
  END IF;
  PERFORM weir._check_key(set_weight.key);
  IF coalesce(set_weight.weight, 1) = 1 THEN
    DELETE FROM weir.key_weight w WHERE w.queue = set_weight.queue AND w.bits = weir._key_bits(set_weight.key);
  ELSIF NOT EXISTS (SELECT FROM weir.key_weight w WHERE w.queue = set_weight.queue AND w.bits = weir._key_bits(set_weight.key) AND w.key = set_weight.key AND w.weight = set_weight.weight) THEN
    INSERT INTO weir.key_weight AS w (queue, bits, key, weight) VALUES (set_weight.queue, weir._key_bits(set_weight.key), set_weight.key, set_weight.weight)
    ON CONFLICT (queue, bits) DO UPDATE SET key = excluded.key, weight = excluded.weight;
  END IF;
END
$$;
COMMENT ON FUNCTION weir.set_weight IS
  'Sets how many jobs a key of a queue gets to start in relation to the other keys, while both have jobs that wait: 0.01 to 1000; NULL or 1: as many as a key without a weight. It counts from each key''s next turn on; limits per key hold all the same. The queue and the key need not exist yet. The same weight again writes nothing. Errors: 22023. Locks: none that others wait for, except another change of the same weight. Isolation: any.';

CREATE OR REPLACE FUNCTION weir.weights() RETURNS TABLE (queue text, key text, weight double precision)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
  SELECT w.queue, w.key, w.weight FROM weir.key_weight w ORDER BY w.queue, w.key
$$;
COMMENT ON FUNCTION weir.weights IS
  'The keys that have a weight, in the order of queues and keys. Errors: none. Locks: none that others wait for. Isolation: any.';
