import json
import time

import psycopg
from psycopg import sql

CHANNEL = 'Orders "new"'


def show(text):
    print(text, flush=True)


def your_turn():
    with psycopg.connect() as conn:  # a transaction is open from the first statement on
        conn.execute(sql.SQL("NOTIFY {}, 'rolled back'").format(sql.Identifier(CHANNEL)))
        conn.rollback()
        conn.execute("SELECT pg_notify(%s, 'committed')", [CHANNEL])
        conn.commit()
        conn.execute("SELECT pg_notify(%s, %s)", [CHANNEL, 'it\'s a "parameter" €'], prepare=True)


def listen():
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
        show("listening")
        for n in conn.notifies():
            show(json.dumps({"channel": n.channel, "payload": n.payload}))
            if n.payload == "your turn":
                your_turn()
                show("done")
            if n.payload == "stop":
                return


while True:
    try:
        listen()
        break
    except psycopg.OperationalError:
        time.sleep(0.05)
