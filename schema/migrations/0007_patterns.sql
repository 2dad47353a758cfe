-- Workers that take up queues while they run, such as a relay with a pattern of queues.

ALTER TABLE weir.worker ADD COLUMN others text;
COMMENT ON COLUMN weir.worker.others IS 'A regular expression, which queues fit that the worker takes up while it runs (weir._fitting); NULL: it takes up none.';

DROP FUNCTION IF EXISTS weir._start(text, text[], interval);  -- another one with an argument more takes its place

-- down --

ALTER TABLE weir.worker DROP COLUMN others;
