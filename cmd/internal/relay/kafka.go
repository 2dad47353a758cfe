package relay

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-pg/weir/cmd/internal/refer"
)

// options are those of a client, which connects when it is used.
func (f kafkaFile) options(name string) ([]kgo.Opt, error) {
	values := [3]string{}
	for i, from := range []struct{ name, value string }{{"brokers", f.Brokers}, {"user", f.User}, {"password", f.Password}} {
		var err error
		if values[i], err = refer.LookUp(from.value); err != nil {
			return nil, fmt.Errorf("%s: %w", from.name, err)
		}
	}
	brokers, user, password := values[0], values[1], values[2]
	if brokers == "" {
		return nil, errors.New("brokers is empty: give one or more, separated by commas, as in 127.0.0.1:9092")
	}
	options := []kgo.Opt{kgo.ClientID("weir relay " + name), kgo.SeedBrokers(strings.Split(strings.ReplaceAll(brokers, " ", ""), ",")...)}
	if f.TLS || f.TLSCA != "" {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if f.TLSCA != "" {
			text, err := os.ReadFile(f.TLSCA)
			if err != nil {
				return nil, fmt.Errorf("tls_ca: %w", err)
			}
			config.RootCAs = x509.NewCertPool()
			if !config.RootCAs.AppendCertsFromPEM(text) {
				return nil, fmt.Errorf("tls_ca: %s has no certificate in PEM form", f.TLSCA)
			}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if (f.SASL == "") != (user == "") || (user == "") != (password == "") {
		return nil, errors.New("sasl, user and password belong together: give all of them, or none")
	}
	switch f.SASL {
	case "":
	case "plain":
		options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "scram-sha-256":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "scram-sha-512":
		options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	default:
		return nil, fmt.Errorf(`sasl = %q: write "plain", "scram-sha-256" or "scram-sha-512"`, f.SASL)
	}
	return options, nil
}
