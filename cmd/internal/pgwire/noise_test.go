package pgwire_test

import (
	"io"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
)

// Whatever bytes arrive, before or during a session, the server neither crashes nor leaks connections.
func TestNoiseHarmsNobody(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	e := start(t, pgwire.Config{})
	for range 400 {
		r := e.dial()
		if random.IntN(4) > 0 {
			r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "x"}})
			r.answer()
		}
		var noise []byte
		for range random.IntN(20) {
			noise = append(noise, someMessage(random)...)
		}
		if _, err := r.net.Write(noise); err != nil {
			continue // it has been refused already
		}
		closeWrite(t, r)
		_, _ = io.Copy(io.Discard, r.net) // until the server ends the connection
		r.net.Close()
	}
	eventually(t, "all connections have ended", func() bool { return e.server.Stats().Connections == 0 })
	conn := e.connect()
	run(t, conn, "LISTEN a")
	run(t, conn, "NOTIFY a")
	notification(t, conn)
}

func closeWrite(t *testing.T, r *raw) {
	t.Helper()
	if tcp, ok := r.net.(interface{ CloseWrite() error }); ok {
		_ = tcp.CloseWrite()
	}
}

// someMessage returns a random message, which may be complete, truncated or empty.
func someMessage(random *rand.Rand) []byte {
	words := []string{
		"LISTEN a", "BEGIN", "NOTIFY a, 'x'", "ROLLBACK", "COMMIT", "SELECT pg_notify($1, $2)", "'", "", "SAVEPOINT s", "ROLLBACK TO s",
		"UNLISTEN *", "nonsense",
	}
	word := words[random.IntN(len(words))]
	messages := []pgproto3.FrontendMessage{
		&pgproto3.Query{String: word}, &pgproto3.Query{String: word + ";" + word},
		&pgproto3.Parse{Query: word, ParameterOIDs: []uint32{25, random.Uint32N(3)}}, &pgproto3.Bind{Parameters: [][]byte{[]byte(word), nil}},
		&pgproto3.Bind{ParameterFormatCodes: []int16{1, 0, 7}, ResultFormatCodes: []int16{1, 1}},
		&pgproto3.Describe{ObjectType: 'S'}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{MaxRows: random.Uint32()},
		&pgproto3.Close{ObjectType: 'P', Name: word}, &pgproto3.Sync{}, &pgproto3.Flush{}, &pgproto3.CopyDone{}, &pgproto3.FunctionCall{},
	}
	b, err := messages[random.IntN(len(messages))].Encode(nil)
	if err != nil {
		b = nil
	}
	switch random.IntN(12) {
	case 0:
		for range 1 + random.IntN(3) {
			if len(b) > 0 {
				b[random.IntN(len(b))] = byte(random.Uint32())
			}
		}
	case 1:
		b = b[:random.IntN(len(b)+1)]
	case 2:
		for range random.IntN(40) {
			b = append(b, byte(random.Uint32()))
		}
	}
	return b
}
