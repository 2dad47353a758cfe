package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestErrorsThatDifferOnlyInTheirDataHaveOneShape: errors as Go, Python, Java, JavaScript and PostgreSQL write them.
func TestErrorsThatDifferOnlyInTheirDataHaveOneShape(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, old := connect(t, url), connect(t, url)
	exec(t, old, `SET standard_conforming_strings = off`)
	for _, c := range []struct {
		shape  string
		errors []string
	}{
		{"dial tcp <n>: connect: connection refused", []string{"dial tcp 10.0.0.17:5432: connect: connection refused", "dial tcp 192.168.1.1:6432: connect: connection refused"}},
		{"decode the args of kind mail: json: cannot unmarshal string into Go struct field Mail.to of type int<n>", []string{"decode the args of kind mail: json: cannot unmarshal string into Go struct field Mail.to of type int64"}},
		{"panic: runtime error: index out of range [<n>] with length <n>", []string{
			"panic: runtime error: index out of range [5] with length 3\n\ngoroutine 12 [running]:\nmain.f(0xc0000140a8)\n\t/srv/a.go:7 +0x1d",
			"panic: runtime error: index out of range [40] with length 17\n\ngoroutine 99 [running]:"}},
		{"open /var/spool/<n>/part-<n>.csv: no such file or directory", []string{
			"open /var/spool/2024/part-17.csv: no such file or directory", "open /var/spool/a9f3/part-4.csv: no such file or directory"}},
		{"user <n>: order <uuid>: not found", []string{
			"user 7: order 0d5b8d0e-6a0f-4e0d-9a54-3a3c1b2f4f10: not found", "user 12345: order AAAAAAAA-BBBB-CCCC-DDDD-EEEEEEEEEEEE: not found"}},
		{`Get "<text>": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`, []string{
			`Get "https://api.example.org/users/7?key=ab\"c": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`}},
		{"GET https://api.example.org/<path> failed with status 404 after <n>ms", []string{
			"GET https://api.example.org/users/7 failed with status 404 after 120ms", "GET https://api.example.org/orders/9/items?page=2#x failed with status 404 after 3.5ms"}},
		{"GET https://api.example.org/<path> failed with status 503 after <n>ms", []string{"GET https://api.example.org/users/7 failed with status 503 after 120ms"}},
		{`ERROR: duplicate key value violates unique constraint "<text>" (SQLSTATE 23505)`, []string{
			`ERROR: duplicate key value violates unique constraint "account_pkey" (SQLSTATE 23505)`, `ERROR: duplicate key value violates unique constraint "x" (SQLSTATE 23505)`}},
		{"exit status 1: cannot write block <n>", []string{"exit status 1: cannot write block 44\nsecond line 9"}},
		{"the token <hex> expired at <time>", []string{
			"the token 9f86d081884c7d65 expired at 2026-11-22T20:13:17Z", "the token 0x7f expired at 2025-01-02 03:04:05.678+02"}},
		{"mail to <email> bounced", []string{"mail to ada.lovelace+x@example.org bounced", "mail to bob@localhost bounced"}},
		{"ValueError: invalid literal for int() with base <n>: '<text>'", []string{
			"Traceback (most recent call last):\n  File \"/srv/app/jobs.py\", line 12, in run\n    int(x)\nValueError: invalid literal for int() with base 10: 'abc'\n",
			"Traceback (most recent call last):\n  File \"/srv/other.py\", line 90, in <module>\n    f()\nValueError: invalid literal for int() with base 10: 'it\\'s 5'\n[failed by retry rule values]"}},
		{`psycopg.errors.UndefinedTable: relation "<text>" does not exist`, []string{
			"Traceback (most recent call last):\n  File \"a.py\", line 3, in run\n    conn.execute(q)\npsycopg.errors.UndefinedTable: relation \"a\" does not exist\nLINE 1: select * from a\n                      ^\n",
			"Traceback (most recent call last):\n  File \"a.py\", line 3, in run\n    conn.execute(q)\npsycopg.errors.UndefinedTable: relation \"b\" does not exist\nLINE 2: from b\n             ^\n[failed by retry rule x]"}},
		{`django.db.utils.IntegrityError: duplicate key value violates unique constraint "<text>"`, []string{
			"Traceback (most recent call last):\n  File \"a.py\", line 3, in run\n    x()\npsycopg.errors.UniqueViolation: duplicate key value violates unique constraint \"k\"\nDETAIL:  Key (a)=(7) already exists.\n" +
				"\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File \"b.py\", line 9, in run\n    y()\n    ~^^\n  [Previous line repeated 9 more times]\n" +
				"django.db.utils.IntegrityError: duplicate key value violates unique constraint \"k\"\nDETAIL:  Key (a)=(7) already exists.\n"}},
		{"exit status 1: KeyError: '<text>'", []string{"exit status 1: Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'user_id'"}},
		{"requests.exceptions.ConnectionError: HTTPSConnectionPool(host='<text>', port=<n>): Max retries exceeded with url: /<n>/<n> (Caused by None)", []string{
			"requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.example.org', port=443): Max retries exceeded with url: /v1/77 (Caused by None)"}},
		{"ConnectionRefusedError: [Errno 111] Connection refused", []string{"ConnectionRefusedError: [Errno 111] Connection refused"}},
		{"java.lang.IllegalStateException: order <n> isn't open", []string{
			"java.lang.IllegalStateException: order 17 isn't open\n\tat com.example.Orders.close(Orders.java:42)\nCaused by: x", "java.lang.IllegalStateException: order 4 isn't open"}},
		{"TypeError: Cannot read properties of undefined (reading '<text>')", []string{
			"TypeError: Cannot read properties of undefined (reading 'name')\n    at run (/srv/app.js:10:5)", "TypeError: Cannot read properties of undefined (reading 'id')"}},
		{"Error: connect ECONNREFUSED <n>", []string{"Error: connect ECONNREFUSED 127.0.0.1:3000", "Error: connect ECONNREFUSED 10.1.1.1:80\n    at TCPConnectWrap"}},
		{"<encrypted>", []string{`{"weir.encrypted":{"key":"a","data":"b"}}`, `{"weir.encrypted": {"key": "a", "data": "a1b2c3d4e5f6 1"}}` + "\n[failed by retry rule x]"}},
		{"", []string{"", " \n "}},
	} {
		for _, text := range c.errors {
			for _, q := range []querier{conn, old} {
				if got := value[string](t, q, `SELECT weir._shape_of($1)`, text); got != c.shape {
					t.Errorf("the shape of\n\t%q is\n\t%s\nwant\t%s", text, got, c.shape)
				}
			}
		}
	}
	if !value[bool](t, conn, `SELECT weir._shape_of(NULL) = '' AND length(weir._shape_of(repeat('a1 ', 20000))) < 2000`) {
		t.Error("the shape of no error, or of a long one")
	}
}
