-- Which keys this database owns, of those that a router spreads over many databases: see functions/slot.sql and functions/slot_move.sql. What it says about slots changes under the
-- advisory lock (1464158566, 0).

CREATE SEQUENCE weir.slot_no AS bigint;
COMMENT ON SEQUENCE weir.slot_no IS 'Numbers the rows of weir.slot.';

CREATE TABLE weir.slot (
  no    bigint      PRIMARY KEY,
  low   integer     NOT NULL,
  high  integer     NOT NULL,
  state text        NOT NULL CHECK (state IN ('owned', 'leaving', 'copying', 'returning', 'left')),
  epoch bigint      NOT NULL,
  move  uuid,
  copy  uuid,
  peer  text,
  at    timestamptz NOT NULL,
  by    text        NOT NULL
);
COMMENT ON TABLE weir.slot IS
  'The slots, from low to high, that this database owns, or has owned. The newest row with a slot counts; rows are only added, and those that a newer one covers in whole are removed with it.';
COMMENT ON COLUMN weir.slot.state IS
  'owned: its jobs are enqueued here; leaving: nothing more is, and its unfinished jobs are taken out of the log; copying: all of them are in weir.departed; returning: the move is being given up, and some of them are in the log again; left: they are in the other database''s log.';
COMMENT ON COLUMN weir.slot.epoch IS 'Grows with each move: of several databases that say that they own a slot, because one was set back, the one with the greatest does.';
COMMENT ON COLUMN weir.slot.move IS 'What the move is called here: random, because a database that was set back counts anew. NULL: the slots have not moved from here.';
COMMENT ON COLUMN weir.slot.copy IS
  'What the move is called in the other database (weir.taken_in), since all jobs have departed. If this database is set back, and they depart again, it has another name: what the other one knows of the name before says nothing about what departs then.';
COMMENT ON COLUMN weir.slot.peer IS 'The id of the database to which they move, or have moved.';

CREATE TABLE weir.departed (
  move  uuid    NOT NULL,
  lane  bigint  NOT NULL,
  front integer NOT NULL,
  xid   bigint  NOT NULL,
  id    bigint  NOT NULL,
  job   jsonb   NOT NULL,
  PRIMARY KEY (move, lane, front, xid, id)
);
COMMENT ON TABLE weir.departed IS
  'Unfinished jobs that were taken out of the log because their slot moves to another database, in the order in which that one logs them: lane by lane, those that were put back first. They are removed when the move has ended, or when the jobs are logged here again, because it is given up.';
COMMENT ON COLUMN weir.departed.front IS '0: the job was put back (retried, snoozed, released or lost); 1: it was never tried.';

CREATE TABLE weir.taken_in (
  move uuid        NOT NULL,
  no   bigint      NOT NULL,
  upto text        NOT NULL,
  at   timestamptz NOT NULL,
  PRIMARY KEY (move, no)
);
COMMENT ON TABLE weir.taken_in IS 'Up to which place of the other database''s weir.departed jobs have arrived here: of each move, the newest row counts, and the others are removed with it.';
COMMENT ON COLUMN weir.taken_in.upto IS 'A place; done: all jobs have arrived, and the slots have been owned here since; or stopped and a place: the move was given up when they had arrived up to there.';

-- down --
DROP TABLE weir.slot, weir.departed, weir.taken_in;
DROP SEQUENCE weir.slot_no;
