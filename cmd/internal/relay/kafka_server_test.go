package relay_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
)

//go:embed testdata/kafka.xml
var kafkaProject string

// kafkaServer is a real broker, with its controller in the same process.
type kafkaServer struct {
	java, classes, dir string
	port, secure       string // without and with TLS and SASL: the user is weir, its password secret
	cmd                *exec.Cmd
}

// kafkaJars returns Java, and a directory with Kafka, which is fetched the first time. Without Java or Maven the test is skipped, or fails if WEIR_TEST_REQUIRE names kafka.
func kafkaJars(t testing.TB) (java, jars string) {
	t.Helper()
	for _, name := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(name); err != nil {
			if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "kafka") {
				t.Fatalf("kafka is required by WEIR_TEST_REQUIRE, and needs %s, which is not installed", name)
			}
			t.Skipf("Kafka needs Java and Maven: %s is not installed", name)
		}
	}
	return drivertest.Tool(t, "java"), drivertest.Installed(t, "kafka", kafkaProject, func(dir string) *exec.Cmd {
		project, err := filepath.Abs("testdata/kafka.xml")
		if err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), drivertest.Tool(t, "mvn"), "--batch-mode", "--quiet", "--file", project, "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory="+dir)
	})
}

var theKafka struct {
	sync.Mutex
	*kafkaServer
}

// sharedKafka returns the broker that the tests share, which is not killed: each uses topics and relays of its own.
func sharedKafka(t testing.TB) *kafkaServer {
	t.Helper()
	java, jars := kafkaJars(t)
	theKafka.Lock()
	defer theKafka.Unlock()
	if theKafka.kafkaServer == nil {
		dir, err := os.MkdirTemp("", "weir-kafka-*")
		if err != nil {
			t.Fatal(err)
		}
		s := newKafka(t, java, jars, dir)
		s.start(t)
		pgtest.AtEnd(func() error {
			s.kill()
			return os.RemoveAll(dir)
		})
		theKafka.kafkaServer = s
	}
	return theKafka.kafkaServer
}

// ownKafka returns a broker that the test may kill.
func ownKafka(t testing.TB) *kafkaServer {
	t.Helper()
	java, jars := kafkaJars(t)
	s := newKafka(t, java, jars, t.TempDir())
	s.start(t)
	t.Cleanup(s.kill)
	return s
}

func newKafka(t testing.TB, java, jars, dir string) *kafkaServer {
	t.Helper()
	s := &kafkaServer{java: java, classes: filepath.Join(jars, "*"), dir: dir, port: freePort(t), secure: freePort(t)}
	controller := freePort(t)
	s.certify(t)
	text := fmt.Sprintf(`
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%[3]s
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:%[1]s,SECURE://127.0.0.1:%[2]s,CONTROLLER://127.0.0.1:%[3]s
advertised.listeners=PLAINTEXT://127.0.0.1:%[1]s,SECURE://127.0.0.1:%[2]s
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location=%[4]s/server.pem
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_weir="secret";
listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
log.dirs=%[4]s/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
log.cleaner.dedupe.buffer.size=2000000
num.recovery.threads.per.data.dir=1
`, s.port, s.secure, controller, dir)
	if err := os.WriteFile(s.config(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	format := s.run("kafka.tools.StorageTool", "format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg", "--config", s.config(),
		"--add-scram", "SCRAM-SHA-256=[name=weir,password=secret]", "--add-scram", "SCRAM-SHA-512=[name=weir,password=secret]")
	if out, err := format.CombinedOutput(); err != nil {
		t.Fatalf("prepare Kafka's directory: %v\n%s", err, out)
	}
	return s
}

func (s *kafkaServer) config() string { return filepath.Join(s.dir, "server.properties") }

// ca is the file with the certificate of the listener with TLS, by itself.
func (s *kafkaServer) ca() string { return filepath.Join(s.dir, "ca.pem") }

func (s *kafkaServer) address() string { return "127.0.0.1:" + s.port }

func (s *kafkaServer) run(class string, args ...string) *exec.Cmd {
	return exec.Command(s.java, append([]string{"-Xmx320m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", s.classes, class}, args...)...)
}

// start starts the broker, and waits until it answers.
func (s *kafkaServer) start(t testing.TB) {
	t.Helper()
	s.cmd = s.run("kafka.Kafka", s.config())
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(s.address()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pgtest.Eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := ready(ctx, c); err != nil {
			said, unread := os.ReadFile(log.Name())
			return errors.Join(fmt.Errorf("%w: Kafka said: %s", err, said), unread)
		}
		return nil
	})
}

// ready returns an error until groups and transactions have coordinators.
func ready(ctx context.Context, c *kgo.Client) error {
	for of := range int8(2) {
		r := kmsg.NewPtrFindCoordinatorRequest()
		r.CoordinatorType, r.CoordinatorKeys = of, []string{"any"}
		found, err := r.RequestWith(ctx, c)
		if err == nil {
			err = kerr.ErrorForCode(found.Coordinators[0].ErrorCode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kill ends the broker as kill -9 does.
func (s *kafkaServer) kill() { kill(s.cmd) }

// certify makes a certificate for 127.0.0.1.
func (s *kafkaServer) certify(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Kafka of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	certificate, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	for file, text := range map[string][]byte{s.ca(): public, filepath.Join(s.dir, "server.pem"): append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), public...)} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// freePort returns the port of an address for a broker, which tests may kill and start again.
func freePort(t testing.TB) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(pgtest.Address(t))
	return port
}
