-- Jobs by state, for queries by hand: all of them.
--
-- A view reads the list page by page, and the next page only when its rows are asked for: so a LIMIT, or a cursor that is closed, ends the reading.
-- Each page has a snapshot of its own, unless the transaction has one, and holds nothing between them. A condition is not seen by the list: all jobs of the state are read.

CREATE OR REPLACE VIEW weir.available_jobs AS
  WITH RECURSIVE page AS (
    SELECT p.job, p.next FROM weir._jobs_after('available', NULL) p
    UNION ALL
    SELECT n.job, n.next FROM page p CROSS JOIN LATERAL weir._jobs_after('available', p.next) n WHERE p.next IS NOT NULL)
  SELECT (p.job).* FROM page p WHERE (p.job).id IS NOT NULL;
CREATE OR REPLACE VIEW weir.running_jobs AS
  WITH RECURSIVE page AS (
    SELECT p.job, p.next FROM weir._jobs_after('running', NULL) p
    UNION ALL
    SELECT n.job, n.next FROM page p CROSS JOIN LATERAL weir._jobs_after('running', p.next) n WHERE p.next IS NOT NULL)
  SELECT (p.job).* FROM page p WHERE (p.job).id IS NOT NULL;
CREATE OR REPLACE VIEW weir.scheduled_jobs AS
  WITH RECURSIVE page AS (
    SELECT p.job, p.next FROM weir._jobs_after('scheduled', NULL) p
    UNION ALL
    SELECT n.job, n.next FROM page p CROSS JOIN LATERAL weir._jobs_after('scheduled', p.next) n WHERE p.next IS NOT NULL)
  SELECT (p.job).* FROM page p WHERE (p.job).id IS NOT NULL;
CREATE OR REPLACE VIEW weir.completed_jobs AS
  WITH RECURSIVE page AS (
    SELECT p.job, p.next FROM weir._jobs_after('completed', NULL) p
    UNION ALL
    SELECT n.job, n.next FROM page p CROSS JOIN LATERAL weir._jobs_after('completed', p.next) n WHERE p.next IS NOT NULL)
  SELECT (p.job).* FROM page p WHERE (p.job).id IS NOT NULL;
CREATE OR REPLACE VIEW weir.failed_jobs AS
  WITH RECURSIVE page AS (
    SELECT p.job, p.next FROM weir._jobs_after('failed', NULL) p
    UNION ALL
    SELECT n.job, n.next FROM page p CROSS JOIN LATERAL weir._jobs_after('failed', p.next) n WHERE p.next IS NOT NULL)
  SELECT (p.job).* FROM page p WHERE (p.job).id IS NOT NULL;
CREATE OR REPLACE VIEW weir.cancelled_jobs AS
  WITH RECURSIVE page AS (
    SELECT p.job, p.next FROM weir._jobs_after('cancelled', NULL) p
    UNION ALL
    SELECT n.job, n.next FROM page p CROSS JOIN LATERAL weir._jobs_after('cancelled', p.next) n WHERE p.next IS NOT NULL)
  SELECT (p.job).* FROM page p WHERE (p.job).id IS NOT NULL;

COMMENT ON VIEW weir.available_jobs IS 'All available jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.running_jobs IS 'All running jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.scheduled_jobs IS 'All scheduled jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.completed_jobs IS 'All completed jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.failed_jobs IS 'All failed jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
COMMENT ON VIEW weir.cancelled_jobs IS 'All cancelled jobs, in the order of weir.jobs_page. It reads about 3,000 jobs a second, whatever the condition, and with LIMIT no more than about that many. Without a transaction in REPEATABLE READ, a job that leaves or enters the state meanwhile may be shown or not.';
