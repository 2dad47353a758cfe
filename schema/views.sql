-- Jobs by state, for people with psql: the newest thousand of each.

CREATE OR REPLACE VIEW weir.available_jobs AS SELECT j.* FROM weir.jobs('available', most => 1000) j;
CREATE OR REPLACE VIEW weir.running_jobs AS SELECT j.* FROM weir.jobs('running', most => 1000) j;
CREATE OR REPLACE VIEW weir.later_jobs AS SELECT j.* FROM weir.jobs('later', most => 1000) j;
CREATE OR REPLACE VIEW weir.completed_jobs AS SELECT j.* FROM weir.jobs('completed', most => 1000) j;
CREATE OR REPLACE VIEW weir.failed_jobs AS SELECT j.* FROM weir.jobs('failed', most => 1000) j;
CREATE OR REPLACE VIEW weir.cancelled_jobs AS SELECT j.* FROM weir.jobs('cancelled', most => 1000) j;
