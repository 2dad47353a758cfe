package main

import (
	"os"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/cluster"
)

// clusterFlags configure hubs that read ticks once for the whole cluster.
type clusterFlags struct {
	Cluster            string   `placeholder:"WHERE" help:"Read messages from the database once for all hubs, and share them over NATS: URLs of a NATS server, or embedded to run one in each hub."`
	ClusterCredentials string   `type:"existingfile" placeholder:"FILE" help:"NATS credentials for the server at --cluster."`
	ClusterListen      string   `placeholder:"ADDR" help:"With --cluster embedded: address on which this hub accepts other hubs (127.0.0.1:6222)."`
	ClusterAdvertise   string   `placeholder:"ADDR" help:"With --cluster embedded: address that other hubs use for this one, if it differs."`
	ClusterRoute       []string `placeholder:"ADDR" help:"With --cluster embedded: address of another hub (its --cluster-listen). May be repeated; one that runs is enough."`
	ClusterSecretFile  string   `type:"existingfile" placeholder:"FILE" help:"With --cluster embedded: secret shared by all hubs, 16 characters or more."`
	ClusterTLSCA       string   `name:"cluster-tls-ca" type:"existingfile" placeholder:"FILE" help:"Certificate authority of the cluster, in PEM."`
	ClusterTLSCert     string   `name:"cluster-tls-cert" type:"existingfile" placeholder:"FILE" help:"This hub's certificate for the cluster, in PEM."`
	ClusterTLSKey      string   `name:"cluster-tls-key" type:"existingfile" placeholder:"FILE" help:"The certificate's key, in PEM."`
}

func (f clusterFlags) config() (*cluster.Config, error) {
	files := cluster.TLS{CA: f.ClusterTLSCA, Cert: f.ClusterTLSCert, Key: f.ClusterTLSKey}
	embedded := f.ClusterListen != "" || f.ClusterAdvertise != "" || len(f.ClusterRoute) > 0 || f.ClusterSecretFile != ""
	switch {
	case f.Cluster == "" && (embedded || f.ClusterCredentials != "" || files != cluster.TLS{}):
		return nil, usagef("the flags --cluster-… require --cluster: set it to the URL of a NATS server, or to embedded")
	case f.Cluster == "":
		return nil, nil
	case f.Cluster != "embedded" && embedded:
		return nil, usagef("--cluster-listen, --cluster-advertise, --cluster-route and --cluster-secret-file require --cluster embedded, not the URL of a NATS server")
	case f.Cluster != "embedded":
		return &cluster.Config{URL: f.Cluster, Credentials: f.ClusterCredentials, TLS: files}, nil
	}
	e := &cluster.Embedded{Listen: f.ClusterListen, Advertise: f.ClusterAdvertise, Routes: f.ClusterRoute, TLS: files}
	if f.ClusterSecretFile != "" {
		secret, err := os.ReadFile(f.ClusterSecretFile)
		if err != nil {
			return nil, usagef("--cluster-secret-file: %s", err)
		}
		e.Secret = strings.TrimSpace(string(secret))
	}
	return &cluster.Config{Embedded: e}, nil
}
