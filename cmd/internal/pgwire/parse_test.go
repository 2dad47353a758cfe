package pgwire

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestStatementsAreReadAsPostgresReadsThem(t *testing.T) {
	t.Parallel()
	null := func() *string { return nil }
	str := func(s string) *string { return &s }
	for sql, want := range map[string]statement{
		`listen Foo`:        listenStatement{"foo"},
		`LISTEN "Foo"`:      listenStatement{"Foo"},
		`LISTEN "a""b.c*"`:  listenStatement{`a"b.c*`},
		`LISTEN Ünïcödé$1_`: listenStatement{"Ünïcödé$1_"},
		"/* a /* nested */ one */LISTEN--x\n\t a\v\f": listenStatement{"a"},
		`UNLISTEN *`:        unlistenStatement{all: true},
		`unlisten a`:        unlistenStatement{channel: "a"},
		`NOTIFY a`:          notifyStatement{"a", ""},
		`NOTIFY a, 'it''s'`: notifyStatement{"a", "it's"},
		`NOTIFY a, 'a\nb'`:  notifyStatement{"a", `a\nb`},
		`NOTIFY a, E'a\nb\t\\\'\x41\101\u00e9\U0001F389\q'''`: notifyStatement{"a", "a\nb\t\\'AAé🎉q'"},
		`NOTIFY a, E'\ud83c\udf89'`:                           notifyStatement{"a", "🎉"},
		`NOTIFY a, e'\xc3\xa9'`:                               notifyStatement{"a", "é"},
		"NOTIFY a, 'one' \n 'two'":                            notifyStatement{"a", "onetwo"},
		`NOTIFY a, $$it's $x$ ''$$`:                           notifyStatement{"a", "it's $x$ ''"},
		`NOTIFY a, $tag$ $$ $tag2$ $tag$`:                     notifyStatement{"a", " $$ $tag2$ "},

		`BEGIN WORK`: txStatement{op: beginTx},
		`BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY, NOT DEFERRABLE`: txStatement{op: beginTx},
		`START TRANSACTION`:                txStatement{op: startTx},
		`END TRANSACTION`:                  txStatement{op: commitTx},
		`COMMIT AND NO CHAIN`:              txStatement{op: commitTx},
		`COMMIT WORK AND CHAIN`:            txStatement{op: commitTx, chain: true},
		`ABORT`:                            txStatement{op: rollbackTx},
		`ROLLBACK TO "S"`:                  txStatement{op: rollbackToTx, name: "S"},
		`ROLLBACK WORK TO SAVEPOINT s`:     txStatement{op: rollbackToTx, name: "s"},
		`RELEASE s`:                        txStatement{op: releaseTx, name: "s"},
		`COMMIT PREPARED 'x'`:              unknownStatement{"COMMIT PREPARED"},
		`DISCARD ALL`:                      discardStatement{"all"},
		`DEALLOCATE PREPARE ALL`:           deallocateStatement{all: true},
		`DEALLOCATE "S1"`:                  deallocateStatement{name: "S1"},
		`CLOSE ALL`:                        closeStatement{all: true},
		`SET datestyle TO ISO, MDY`:        setStatement{name: "DateStyle", value: str("iso, mdy")},
		`SET SESSION x = -1.5`:             setStatement{name: "x", value: str("-1.5")},
		`SET LOCAL a.b = DEFAULT`:          setStatement{name: "a.b", value: null(), local: true},
		`SET TIME ZONE 'Europe/Rome'`:      setStatement{name: "TimeZone", value: str("Europe/Rome")},
		`SET TIME ZONE DEFAULT`:            setStatement{name: "TimeZone"},
		`SET NAMES 'utf8'`:                 setStatement{name: "client_encoding", value: str("utf8")},
		`SET TRANSACTION READ ONLY`:        ignoredStatement{"SET"},
		`SET CONSTRAINTS ALL DEFERRED`:     ignoredStatement{"SET"},
		`SET SESSION AUTHORIZATION 'x'`:    unknownStatement{"SET ROLE"},
		`RESET ALL`:                        resetStatement{all: true},
		`RESET SESSION AUTHORIZATION`:      ignoredStatement{"RESET"},
		`SHOW TIME ZONE`:                   showStatement{name: "TimeZone"},
		`SHOW TRANSACTION ISOLATION LEVEL`: showStatement{name: "transaction_isolation"},
		`SHOW ALL`:                         showStatement{all: true},
		`CREATE FUNCTION f() RETURNS void LANGUAGE sql AS $f$ SELECT 1; $f$`: unknownStatement{"CREATE"},
		`SELECT pg_listening_channels()`:                                     selectStatement{channels: true},
		`SELECT 1 FROM t`:                                                    unknownStatement{"SELECT"},
		`SELECT pg_notify('a')`:                                              unknownStatement{"SELECT"},
		`SELECT pg_notify('a', b)`:                                           unknownStatement{"SELECT"},
		`SELECT a.b.c()`:                                                     unknownStatement{"SELECT"},
		`SELECT 1 + 1`:                                                       unknownStatement{"SELECT"},
		`SELECT * FROM generate_series(1, 2)`:                                unknownStatement{"SELECT"},
		`SELECT pg_notify(pg_notify('a', 'b'), 'c')`:                         unknownStatement{"SELECT"},
		`SELECT ` + strings.Repeat("CAST(", 9_000) + `1`:                     unknownStatement{"SELECT"},
		`WITH x AS (SELECT 1) SELECT * FROM x`:                               unknownStatement{"WITH"},
	} {
		got, err := parse(sql)
		if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].statement, want) {
			t.Errorf("%s\n got %+v, %v\nwant %+v", sql, got, err, want)
		}
	}
}

func TestQueriesAreSplitAtSemicolons(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"":                               "",
		" ; /* ; */ ; -- ;":              "",
		"LISTEN a;":                      "listenStatement",
		"LISTEN a; NOTIFY b, ';'; END":   "listenStatement notifyStatement txStatement",
		"DO $$ BEGIN; END; $$; SELECT 1": "unknownStatement selectStatement",
		"INSERT INTO \";\" VALUES (';')": "unknownStatement",
	} {
		got, err := parse(sql)
		var kinds []string
		for _, s := range got {
			kinds = append(kinds, strings.TrimPrefix(fmt.Sprintf("%T", s.statement), "pgwire."))
		}
		if all := strings.Join(kinds, " "); err != nil || all != want {
			t.Errorf("%s: %s, %v, want %s", sql, all, err, want)
		}
	}
}

func TestBadSyntaxIsAnError(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"LISTEN":                             "syntax error at end of input",
		"LISTEN 'a'":                         `syntax error at or near "'a'"`,
		"LISTEN a b":                         `syntax error at or near "b"`,
		"LISTEN a.b":                         `syntax error at or near "."`,
		`LISTEN ""`:                          "zero-length delimited identifier",
		`LISTEN "a`:                          "unterminated quoted identifier",
		"LISTEN " + strings.Repeat("x", 256): "identifier too long: 256 bytes, at most 255 are allowed",
		"NOTIFY a,":                          "syntax error at end of input",
		"NOTIFY a, b":                        `syntax error at or near "b"`,
		"NOTIFY a, 'x":                       "unterminated quoted string",
		`NOTIFY a, E'x\'`:                    "unterminated quoted string",
		`NOTIFY a, E'\u12'`:                  "invalid Unicode escape: write \\uXXXX or \\UXXXXXXXX",
		`NOTIFY a, E'\ud83c'`:                "invalid Unicode escape: write \\uXXXX or \\UXXXXXXXX",
		`NOTIFY a, E'\000'`:                  `invalid byte sequence for encoding "UTF8" in a string`,
		"NOTIFY a, $$x":                      "unterminated dollar-quoted string",
		"LISTEN a /* /* */":                  "unterminated /* comment",
		"BEGIN NOW":                          `syntax error at or near "now"`,
		"7":                                  `syntax error at or near "7"`,
		"LISTEN \xff":                        `invalid byte sequence for encoding "UTF8" in a query`,
		"SELECT $0":                          "there is no parameter $0",
		"SELECT $5000":                       "a statement may have at most 1000 parameters here",
	} {
		_, err := parse(sql)
		if err == nil || !strings.EqualFold(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", sql, err, want)
		}
		var told *Error
		if err != nil && !errors.As(err, &told) {
			t.Errorf("%s: no SQLSTATE", sql)
		}
	}
}

func TestTypesGoThroughBothFormats(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		typ    *dataType
		binary string
		text   string
	}{
		{int2Type, "\xff\xfe", "-2"}, {int4Type, "\x00\x01\x00\x00", "65536"}, {int8Type, "\xff\xff\xff\xff\xff\xff\xff\xff", "-1"},
		{oidType, "\xff\xff\xff\xff", "4294967295"}, {boolType, "\x01", "t"}, {boolType, "\x00", "f"}, {jsonbType, "\x01{}", "{}"},
		{jsonType, "{}", "{}"}, {textType, "é", "é"}, {varcharType, "", ""}, {nameType, "x", "x"},
	} {
		for format, bytes := range []string{test.text, test.binary} {
			v, err := test.typ.decode([]byte(bytes), int16(format))
			if err != nil || v == nil || *v != test.text {
				t.Errorf("%s, format %d: %v", test.typ.name, format, err)
				continue
			}
			if got := test.typ.encode(v, int16(format)); string(got) != bytes {
				t.Errorf("%s, format %d: %q", test.typ.name, format, got)
			}
		}
	}
	for _, bad := range []struct {
		typ    *dataType
		bytes  string
		format int16
	}{{int4Type, "x", 0}, {int4Type, "abc", 1}, {int2Type, "70000", 0}, {boolType, "maybe", 0}, {jsonbType, "\x02{}", 1}, {jsonbType, "", 1}, {textType, "\xff", 1}} {
		if v, err := bad.typ.decode([]byte(bad.bytes), bad.format); err == nil {
			t.Errorf("%s took %q as %q", bad.typ.name, bad.bytes, *v)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`LISTEN "a"; NOTIFY a, E'\x41\u0041'; SELECT pg_notify($1::text, CAST($2 AS varchar)) AS x`, "$$ $a$ $1 'x'\n'y' /* /* */ */ -- x",
		"SET a.b TO -1, 'x'; SHOW TIME ZONE; BEGIN ISOLATION LEVEL READ COMMITTED", "select * from pg_listening_channels()",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		statements, err := parse(sql)
		var told *Error
		if err != nil && !errors.As(err, &told) {
			t.Fatalf("no SQLSTATE: %v", err)
		}
		for _, s := range statements {
			describe(s.statement)
		}
	})
}

// TestLongStatementsCostLittle: a query made only of statements, columns, casts or parameters needs no multiple of its length in memory.
func TestLongStatementsCostLittle(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole process allocates")
	const length = 2 << 20
	for what, sql := range map[string]string{
		"columns":    "SELECT 1" + strings.Repeat(",1", length/2),
		"statements": strings.Repeat("A;", length/2),
		"listens":    strings.Repeat("LISTEN a;", length/9),
		"casts":      "SELECT 1" + strings.Repeat("::int", length/5),
		"words":      "SELECT " + strings.Repeat("a b ", length/4),
		"nesting":    "SELECT " + strings.Repeat("(", length),
		"parameters": "SELECT $1" + strings.Repeat(",$65535", length/7),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := parse(sql)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 16<<20 {
			t.Errorf("%s: %v after %d MB", what, err, took>>20)
		}
	}
	if _, err := parse("NOTIFY a, '" + strings.Repeat("x", length) + "'; " + strings.Repeat("NOTIFY a, 'b';", 3000)); err != nil {
		t.Errorf("three thousand notifications and a long one: %v", err)
	}
}

func FuzzVerifier(f *testing.F) {
	f.Add("SCRAM-SHA-256$4096:AAAA$AAAA:AAAA", "n,,n=,r=abc", "c=biws,r=abc,p=AAAA")
	f.Fuzz(func(t *testing.T, text, first, last string) {
		if v, err := parseVerifier(text); err == nil && v.String() == "" {
			t.Fatal("empty")
		}
		s := &scram{verifier: mock([]byte("secret"), "user", iterations)}
		if _, err := s.first([]byte(first)); err == nil {
			if _, ok, _ := s.last([]byte(last)); ok {
				t.Fatal("a mock let somebody in")
			}
		}
	})
}
