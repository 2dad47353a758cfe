package weircrypt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/weircrypt"
)

var _ weir.Codec = (*weircrypt.Codec)(nil)

// documented is a test vector of docs/encryption.md.
type documented struct{ part, job, kind, plain, stored string }

func vectors(t *testing.T) (keys string, all []documented, page string) {
	t.Helper()
	text, err := os.ReadFile("../docs/encryption.md")
	if err != nil {
		t.Fatal(err)
	}
	keys = "test:" + string(regexp.MustCompile("in base64 `([^`]+)`").FindSubmatch(text)[1])
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\d+)` \\| `([^`]+)` \\| `([^`]+)` \\| `([^`]+)` \\|$").FindAllStringSubmatch(string(text), -1) {
		all = append(all, documented{m[1], m[2], m[3], m[4], m[5]})
	}
	if len(all) != 2 {
		t.Fatalf("found %d test vectors", len(all))
	}
	return keys, all, string(text)
}

// TestTheTestVectorsOfTheDocumentationDecrypt: the format is the documented one, and its data is bound to part, job and kind.
func TestTheTestVectorsOfTheDocumentationDecrypt(t *testing.T) {
	t.Parallel()
	keys, all, _ := vectors(t)
	codec, err := weircrypt.Parse(keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		key, data, _, err := sealed.Split([]byte(v.stored))
		if err != nil || !sealed.Is(v.stored) {
			t.Fatalf("%+v: %v", v, err)
		}
		id, err := strconv.ParseInt(v.job, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		part := sealed.Part(v.part)
		if plain, err := codec.Decode(t.Context(), key, data, sealed.Bound(part, id, v.kind)); err != nil || string(plain) != v.plain {
			t.Errorf("%+v: %q, %v", v, plain, err)
		}
		for _, bound := range [][]byte{sealed.Bound("output", id, v.kind), sealed.Bound(part, id+1, v.kind), sealed.Bound(part, id, v.kind+"s"), nil} {
			if plain, err := codec.Decode(t.Context(), key, data, bound); err == nil {
				t.Errorf("%+v, bound to %s, is %q", v, bound, plain)
			}
		}
	}
}

// TestTheDocumentedTypeScriptReadsTheSameFormat runs the page's own code, if Node.js is installed.
func TestTheDocumentedTypeScriptReadsTheSameFormat(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed")
	}
	keys, all, page := vectors(t)
	_, program, _ := strings.Cut(page, "```typescript\n")
	program, _, _ = strings.Cut(program, "```")
	program = regexp.MustCompile(`(?m)^export function .*$`).ReplaceAllStringFunc(program, func(line string) string { // Node.js may not strip types
		return regexp.MustCompile(`: (string|Buffer|Record<string, Buffer>|number \| bigint)`).ReplaceAllString(strings.TrimPrefix(line, "export "), "")
	})
	secret := strings.TrimPrefix(keys, "test:")
	for _, v := range all {
		program += fmt.Sprintf("console.log(decrypt({test: Buffer.from(%q, 'base64')}, %q, %s, %q, %q));\n", secret, v.part, v.job, v.kind, v.stored)
	}
	program += fmt.Sprintf("console.log(encrypt('test', Buffer.from(%q, 'base64'), 'output', 5, 'k', 'ä'));\n", secret)
	file := filepath.Join(t.TempDir(), "program.mjs")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), node, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 3 || lines[0] != all[0].plain || lines[1] != all[1].plain {
		t.Fatalf("it printed %s", out)
	}
	codec, err := weircrypt.Parse(keys)
	if err != nil {
		t.Fatal(err)
	}
	key, data, _, err := sealed.Split([]byte(lines[2]))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := codec.Decode(t.Context(), key, data, sealed.Bound("output", 5, "k")); err != nil || string(plain) != "ä" {
		t.Errorf("what it encrypted is %q, %v", plain, err)
	}
}

// TestAKeyThatCannotBeUsedIsSaidAndNotShown: errors name the key and what to do, never a secret; and a printed key shows its id alone.
func TestAKeyThatCannotBeUsedIsSaidAndNotShown(t *testing.T) {
	t.Parallel()
	const good = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	for text, want := range map[string]string{
		"":                                    "there is no key",
		" , \n":                               "there is no key",
		good:                                  "key 1 has no colon",
		"a:" + good + " a:" + good:            `two keys with the ID "a"`,
		"a:" + good[4:]:                       `the secret of key "a" has 29 bytes`,
		"a:" + good[1:]:                       `the secret of key "a" is not base64`,
		":" + good:                            "1 to 128 letters",
		"ä:" + good:                           "1 to 128 letters",
		strings.Repeat("x", 129) + ":" + good: "1 to 128 letters",
	} {
		if _, err := weircrypt.Parse(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), good[8:20]) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	key := weircrypt.Key{ID: "a", Secret: []byte("0123456789abcdef0123456789abcdef")}
	for _, format := range []string{"%v", "%s", "%+v", "%#v"} {
		if text := fmt.Sprintf(format, key); text != "key a" {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

// TestTheIDOfAKeyMayHaveColons: as New accepts it, Parse does.
func TestTheIDOfAKeyMayHaveColons(t *testing.T) {
	t.Parallel()
	codec, err := weircrypt.Parse("aws:kms:1/2:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	if err != nil {
		t.Fatal(err)
	}
	if key, _, err := codec.Encode(t.Context(), []byte("x"), nil); err != nil || key != "aws:kms:1/2" {
		t.Errorf("the id of the key is %q, %v", key, err)
	}
}

// TestNoTwoTextsAreEncryptedAlike: nonces are random, and what is encrypted with one codec decrypts with another that has the key.
func TestNoTwoTextsAreEncryptedAlike(t *testing.T) {
	t.Parallel()
	a, b := weircrypt.Key{ID: "a", Secret: bytes.Repeat([]byte{1}, 32)}, weircrypt.Key{ID: "b", Secret: bytes.Repeat([]byte{2}, 32)}
	old, err := weircrypt.New(a)
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := weircrypt.New(b, a)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for n := range 1000 {
		plain := bytes.Repeat([]byte{'x'}, n)
		key, data, err := old.Encode(context.Background(), plain, []byte("here"))
		if err != nil || key != "a" || seen[string(data[:12])] || len(data) != n+28 {
			t.Fatalf("%d bytes: key %s, %d bytes, %v", n, key, len(data), err)
		}
		seen[string(data[:12])] = true
		if got, err := rotated.Decode(context.Background(), key, data, []byte("here")); err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%d bytes: %q, %v", n, got, err)
		}
		data[n%len(data)] ^= 1
		if _, err := rotated.Decode(context.Background(), key, data, []byte("here")); err == nil {
			t.Fatalf("%d bytes: a changed bit is not noticed", n)
		}
	}
	key, data, err := rotated.Encode(context.Background(), nil, nil)
	if err != nil || key != "b" {
		t.Fatal(key, err)
	}
	if _, err := old.Decode(context.Background(), key, data, nil); !errors.Is(err, weir.ErrUnknownKey) {
		t.Errorf("a key that it does not have: %v", err)
	}
	for _, short := range [][]byte{nil, data[:11], data[:27]} {
		if _, err := rotated.Decode(context.Background(), key, short, nil); err == nil {
			t.Errorf("%d bytes decrypt", len(short))
		}
	}
}
