-- Its place is kept for the history of queues, which is made elsewhere.

-- down --
