-- Jobs by state, for use in psql: the first thousand of each.

CREATE OR REPLACE VIEW weir.available_jobs AS SELECT j.* FROM weir.jobs('available', max_rows => 1000) j;
CREATE OR REPLACE VIEW weir.running_jobs AS SELECT j.* FROM weir.jobs('running', max_rows => 1000) j;
CREATE OR REPLACE VIEW weir.scheduled_jobs AS SELECT j.* FROM weir.jobs('scheduled', max_rows => 1000) j;
CREATE OR REPLACE VIEW weir.completed_jobs AS SELECT j.* FROM weir.jobs('completed', max_rows => 1000) j;
CREATE OR REPLACE VIEW weir.failed_jobs AS SELECT j.* FROM weir.jobs('failed', max_rows => 1000) j;
CREATE OR REPLACE VIEW weir.cancelled_jobs AS SELECT j.* FROM weir.jobs('cancelled', max_rows => 1000) j;
